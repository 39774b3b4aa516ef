"""`train` on a tiny target, from text to a drafter: interrupted, resumed, started anew."""

from __future__ import annotations

import json
import re
import signal
from pathlib import Path

import pytest
import torch
from tiny_training import chat_target

from dspark.cli.main import main
from dspark.engine.models.licence import stated_licence
from dspark.engine.training.settings import DrafterShape, TextSettings, TrainJob, TrainSettings

SMALL = ["--layers", "1", "--markov-rank", "8", "--rows", "2", "--row-tokens", "128", "--anchors", "6"]


@pytest.fixture(scope="module")
def target(tmp_path_factory):
    return str(chat_target(tmp_path_factory.mktemp("model") / "target"))


def test_a_drafter_from_end_to_end_and_decoding_with_it(target, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("prompts.jsonl").write_text('{"prompt": "one two"}\n{"turns": ["three"]}\n{"wrong": 1}\n')
    text = ["--prompts", "prompts.jsonl", "--text-tokens", "3000", "--max-tokens", "40"]
    arguments = ["train", "-o", "drafter", "--target", target, "--device", "cpu", "--steps", "4", *text, *SMALL]
    assert main([*arguments, "--json", "--license", "apache-2.0"]) == 0
    captured = capsys.readouterr()
    assert stated_licence(Path("drafter")) == "apache-2.0"
    assert re.search(r"drafter/training \([0-9.]+ MB\) is only needed for --resume, and may be deleted", captured.err)
    document = json.loads(captured.out)
    assert (document["command"], document["steps"], document["output"]) == ("train", 4, "drafter")
    assert document["best"]["sampled_length"] >= 1
    assert document["text_tokens"] >= 3000
    assert "1 rows of prompts.jsonl cannot be used" in captured.err
    assert "held out, step 4" in captured.err
    assert "\x1b" not in captured.err
    assert sorted(path.name for path in Path("drafter").iterdir()) == [
        "README.md", "config.json", "model.safetensors", "training",
    ]  # fmt: skip
    sources = {json.loads(line)["source"] for line in Path("drafter/training/text.jsonl").read_text().splitlines()}
    assert "prompt" in sources and sources & {"question", "opening"}

    assert main(["decode", "-i", "prompts.jsonl", "--target", target, "--drafter", "drafter", "--device", "cpu"]) == 3
    assert main([*arguments, "--resume", "--quiet"]) == 0
    # A finished run is not trained again, and a folder that holds one is not written over unasked.
    assert main(arguments) == 2
    assert "drafter holds a drafter or an interrupted run (config.json)" in capsys.readouterr().err


def test_text_is_used_again_and_another_text_is_not_resumed(target, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    arguments = ["train", "--target", target, "--device", "cpu", "--steps", "2", "--data", "t.jsonl", *SMALL]
    assert main([*arguments, "-o", "one", "--text-tokens", "2000", "--max-tokens", "40"]) == 0
    written = Path("t.jsonl").read_bytes()
    assert main([*arguments, "-o", "two"]) == 0
    assert Path("t.jsonl").read_bytes() == written
    assert Path("one/model.safetensors").read_bytes() == Path("two/model.safetensors").read_bytes()
    Path("t.jsonl").write_bytes(b"\n".join(written.splitlines()[1:]) + b"\n")
    capsys.readouterr()
    assert main([*arguments, "-o", "two", "--resume"]) == 2
    assert "two holds a run that differs in text" in capsys.readouterr().err


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device here")
def test_a_device_that_is_not_here_is_refused_before_earlier_work_is_dropped(target, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("d/training").mkdir(parents=True)
    for path in ("t.jsonl", "d/training/state.pt"):
        Path(path).write_bytes(b"earlier")
    arguments = ["train", "-o", "d", "--target", target, "--device", "cuda", "--data", "t.jsonl", "--overwrite"]
    assert main(arguments) == 2
    message = "dspark: --device 'cuda' cannot be used: PyTorch finds no CUDA device here"
    assert capsys.readouterr().err.splitlines()[-2:] == [message, "  Leave --device out, or give --device cpu."]
    assert Path("d/training/state.pt").read_bytes() == b"earlier"


def test_starting_anew_writes_new_text_and_keeps_the_drafter_until_there_is_another(
    target, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    arguments = ["train", "-o", "d", "--target", target, "--device", "cpu", "--steps", "2", "--text-tokens", "2000"]
    arguments += ["--max-tokens", "40", *SMALL]
    assert main(arguments) == 0
    text, drafter = Path("d/training/text.jsonl").read_bytes(), Path("d/model.safetensors").read_bytes()
    import dspark.engine.training.job as job

    write = job.write_texts

    def broken(*args, **kwargs):
        write(*args, **kwargs)
        raise KeyboardInterrupt

    monkeypatch.setattr(job, "write_texts", broken)
    capsys.readouterr()
    assert main([*arguments, "--overwrite", "--seed", "1"]) == 130
    err = capsys.readouterr().err
    assert "d holds an earlier run: its text and state are dropped now, its drafter when this run has measured" in err
    assert "This run has saved no drafter yet, and the one in d is of before it; the same command with --resume" in err
    assert "best" not in err
    assert Path("d/training/text.jsonl").read_bytes() != text
    assert Path("d/model.safetensors").read_bytes() == drafter
    assert not Path("d/training/state.pt").exists()


REFUSED_EARLY = {
    "row longer than the context": (["--row-tokens", "{longer}"], "--row-tokens is {longer}, beyond the target's"),
    "feature layer": (["--feature-layers", "0,99"], "--feature-layers names layer 99"),
    "mask token": (["--mask-token-id", "100000"], "--mask-token-id is 100000"),
    "prompts": (
        ["--prompts", "none.jsonl"],
        "cannot read none.jsonl: No such file or directory\n  Check the path given to --p",
    ),
}


@pytest.mark.parametrize(("flags", "message"), REFUSED_EARLY.values(), ids=REFUSED_EARLY)
def test_what_the_target_rules_out_is_refused_before_text_is_read_or_dropped(
    target, tmp_path, monkeypatch, capsys, flags, message
):
    monkeypatch.chdir(tmp_path)
    limit = json.loads((Path(target) / "config.json").read_text())["max_position_embeddings"]
    Path("d/training").mkdir(parents=True)
    for name in ("text.jsonl", "state.pt"):
        Path("d/training", name).write_bytes(b"earlier")
    numbers = {"longer": 16 * (limit // 16 + 1)}
    arguments = ["train", "-o", "d", "--target", target, "--device", "cpu", "--steps", "1", "--overwrite"]
    assert main([*arguments, *(flag.format(**numbers) for flag in flags)]) == 2
    assert message.format(**numbers) in capsys.readouterr().err
    assert {path.name: path.read_bytes() for path in Path("d/training").iterdir()} == {
        "text.jsonl": b"earlier",
        "state.pt": b"earlier",
    }


def test_a_row_as_long_as_the_context_is_taken(target, tmp_path, monkeypatch):
    from dspark.engine.training.job import _check_fit

    monkeypatch.chdir(tmp_path)
    limit = json.loads((Path(target) / "config.json").read_text())["max_position_embeddings"]
    settings = TrainSettings(steps=1, row_tokens=16 * (limit // 16))
    _check_fit(TrainJob(target, Path("d"), DrafterShape(), settings, TextSettings()), Path(target))


def test_a_second_run_on_one_folder_is_refused(target, tmp_path, monkeypatch, capsys):
    import dspark.engine.training.job as job

    monkeypatch.chdir(tmp_path)
    arguments = ["train", "-o", "d", "--target", target, "--device", "cpu", "--steps", "1", "--text-tokens", "2000"]
    arguments += ["--max-tokens", "40", *SMALL]
    write, codes = job.write_texts, []

    def meanwhile(*args, **kwargs):
        codes.extend(main([*arguments, *flags]) for flags in ([], ["--resume"], ["--overwrite"]))
        return write(*args, **kwargs)

    monkeypatch.setattr(job, "write_texts", meanwhile)
    assert main(arguments) == 0
    assert codes == [2, 2, 2]
    assert capsys.readouterr().err.count("dspark: another process is writing d\n  Wait until it is done, or give") == 3


def test_text_behind_one_prompt_is_held_out_by_text(target, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    text = [{"prompt_token_ids": [1, 9], "token_ids": [5, 6, 7, index]} for index in range(3, 60)]
    Path("t.jsonl").write_text("".join(json.dumps(row) + "\n" for row in text))
    arguments = ["train", "--target", target, "--device", "cpu", "--steps", "1", "--data", "t.jsonl", *SMALL]
    assert main([*arguments, "-o", "d"]) == 0
    assert "All texts stand behind one prompt, so texts and not prompts are held out." in capsys.readouterr().err
    assert "of them held out by text" in Path("d/README.md").read_text()
    Path("t.jsonl").write_text(json.dumps(text[0]) + "\n" + json.dumps(text[0]) + "\n")
    assert main([*arguments, "-o", "e"]) == 2
    assert "all 2 texts are the same one, so none can be held out" in capsys.readouterr().err


def test_interrupted_while_training_and_resumed(target, tmp_path, monkeypatch, capsys):
    import dspark.engine.training.trainer as trainer

    monkeypatch.chdir(tmp_path)
    arguments = ["train", "-o", "d", "--target", target, "--device", "cpu", "--steps", "3", "--text-tokens", "2000"]
    arguments += ["--max-tokens", "40", *SMALL]
    take = trainer.Trainer._take_step

    def interrupted(self, host, rate):
        take(self, host, rate)
        signal.raise_signal(signal.SIGTERM)

    monkeypatch.setattr(trainer.Trainer, "_take_step", interrupted)
    assert main(arguments) == 130
    err = capsys.readouterr().err
    assert "dspark: interrupted (Training)" in err
    assert "The best drafter so far is in d; the same command with --resume goes on." in err
    monkeypatch.setattr(trainer.Trainer, "_take_step", take)
    assert main([*arguments, "--resume", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["steps"] == 3
