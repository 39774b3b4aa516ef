"""The folder of a run: whose drafter it holds, and that no two runs write to it."""

import os

import pytest
from refusals import assert_reads_well

from dspark.engine.errors import UsageError
from dspark.engine.training.output_folder import OutputFolder
from dspark.engine.training.text_file import TextFile


def filled(path, *names):
    for name in names:
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).touch()
    return OutputFolder(path)


@pytest.mark.parametrize(
    ("names", "sentence"),
    [
        ((), "No drafter was saved yet"),
        (("model.safetensors", "training/best.json"), "No drafter was saved yet"),
        (("config.json", "training/best.json"), "No drafter was saved yet"),
        (("config.json", "model.safetensors"), "This run has saved no drafter yet, and the one in {} is of before it"),
        (("config.json", "model.safetensors", "training/best.json"), "The best drafter so far is in {}"),
    ],
    ids=["nothing", "no config", "no weights", "of before", "of this run"],
)
def test_the_best_so_far_is_of_this_run(tmp_path, names, sentence):
    assert filled(tmp_path, *names).best_so_far == sentence.format(tmp_path)


def test_a_forgotten_run_leaves_its_drafter_and_no_claim_to_it(tmp_path):
    folder = filled(tmp_path, "config.json", "model.safetensors", "training/state.pt", "training/best.json")
    folder.forget_run()
    assert folder.has_drafter and "is of before it" in folder.best_so_far
    assert list((tmp_path / "training").iterdir()) == []


@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "training/text.jsonl.partial"])
def test_what_is_there_is_not_written_over_unasked(tmp_path, name):
    folder = filled(tmp_path, name)
    with pytest.raises(UsageError, match="holds a drafter or an interrupted run") as refused:
        folder.check(tmp_path / "text.jsonl", resume=False, overwrite=False)
    assert "--resume" in refused.value.remedy and "--overwrite" in refused.value.remedy
    folder.check(tmp_path / "text.jsonl", resume=True, overwrite=False)
    folder.check(tmp_path / "text.jsonl", resume=False, overwrite=True)


@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "training"])
def test_a_link_that_leads_nowhere_is_not_replaced_unasked(tmp_path, name):
    (tmp_path / name).symlink_to(tmp_path / "gone")
    with pytest.raises(UsageError, match=f"holds a drafter or an interrupted run \\({name}\\)"):
        OutputFolder(tmp_path).check(tmp_path / "text.jsonl", resume=False, overwrite=False)
    OutputFolder(tmp_path).check(tmp_path / "text.jsonl", resume=False, overwrite=True)


@pytest.mark.parametrize("flags", [{}, {"resume": True}, {"overwrite": True}], ids=["fresh", "resume", "overwrite"])
def test_a_second_run_on_one_folder_is_refused_while_the_first_runs(tmp_path, flags):
    folder = OutputFolder(tmp_path / "d")
    with folder.locked():
        with pytest.raises(UsageError, match=r"another process is writing .*d$") as refused:
            folder.check(tmp_path / "text.jsonl", **{"resume": False, "overwrite": False, **flags})
        assert_reads_well(refused.value)
        with pytest.raises(UsageError, match="another process"), folder.locked():
            pass
    folder.check(tmp_path / "text.jsonl", **{"resume": False, "overwrite": False, **flags})
    with folder.locked():
        assert list((tmp_path / "d").iterdir()) == []


def test_a_file_system_without_locks_does_not_keep_a_run_from_its_folder(tmp_path, monkeypatch):
    def unsupported(descriptor, operation):
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr("fcntl.flock", unsupported)
    with OutputFolder(tmp_path).locked():
        assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("resume", [True, False], ids=["resume", "fresh"])
def test_two_runs_do_not_write_one_text(tmp_path, resume):
    first = TextFile(tmp_path / "t.jsonl", resume=False)
    first.partial.write_text("{}\n")
    with pytest.raises(UsageError, match=r"another process is writing .*t\.jsonl"):
        TextFile(tmp_path / "t.jsonl", resume=resume)
    assert first.partial.read_text() == "{}\n"
    first.close()
    TextFile(tmp_path / "t.jsonl", resume=resume).close()
