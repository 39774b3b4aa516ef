"""Places of output files: what is refused of them before anything is computed, and how they are named."""

import itertools
from pathlib import Path

import pytest
from refusals import assert_reads_well

from dspark.engine.errors import UsageError
from dspark.engine.jobs.output_places import (
    DecodePlaces,
    check_document,
    check_folder,
    check_output,
    metrics_path,
    refuse_both,
)


@pytest.mark.parametrize(
    ("files", "flags", "message"),
    [
        (["out.jsonl"], {}, "exists"),
        (["out.jsonl.partial"], {}, "unfinished run"),
        (["out.jsonl"], {"resume": True}, "nothing to resume"),
    ],
    ids=["output", "partial", "finished"],
)
def test_what_exists_is_not_overwritten_unasked(tmp_path, files, flags, message):
    for name in files:
        (tmp_path / name).touch()
    with pytest.raises(UsageError, match=message):
        check_output(tmp_path / "out.jsonl", **{"resume": False, "overwrite": False, **flags})


def test_a_place_for_metrics_is_checked_like_that_of_the_output(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match="is not a file"):
        check_document(tmp_path, flag="--metrics")
    with pytest.raises(UsageError, match="cannot create") as refused:
        check_document(tmp_path / "file" / "m.json", flag="--metrics")
    assert "--metrics" in refused.value.remedy
    check_document(tmp_path / "new" / "m.json", flag="--metrics")


def test_a_finished_output_is_not_refused_when_it_is_resumed(tmp_path):
    (tmp_path / "out.jsonl").touch()
    places = DecodePlaces.named(tmp_path / "out.jsonl", None, workdir=tmp_path)
    assert places.check_output(resume=True, overwrite=False)
    with pytest.raises(UsageError, match="exists"):
        places.check_output(resume=False, overwrite=False)
    assert not places.check_output(resume=False, overwrite=True)


def test_only_a_place_that_was_named_is_refused_by_its_own_flag(tmp_path):
    (tmp_path / "m").mkdir()
    named = DecodePlaces.named(None, tmp_path / "m", workdir=tmp_path)
    assert (named.output, named.check_output(resume=False, overwrite=False)) == (tmp_path / "decode.jsonl", False)
    with pytest.raises(UsageError, match="is not a file") as refused:
        named.check_metrics()
    assert "--metrics" in refused.value.remedy
    (tmp_path / "decode.metrics.json").mkdir()
    beside = DecodePlaces.named(None, None, workdir=tmp_path)
    beside.check_metrics()
    with pytest.raises(UsageError, match="is not a file") as refused:
        beside.check_output(resume=False, overwrite=False)
    assert "--output" in refused.value.remedy


def test_only_files_are_outputs(tmp_path):
    for place in (tmp_path, tmp_path / ".." / "null"):
        if place.name == "null":
            place = type(place)("/dev/null")
        with pytest.raises(UsageError, match="is not a file"):
            check_output(place, resume=False, overwrite=True)
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match="cannot create"):
        check_output(tmp_path / "file" / "out", resume=False, overwrite=False)


def test_two_flags_that_contradict_each_other_are_refused():
    with pytest.raises(UsageError, match="exclude each other"):
        refuse_both(resume=True, overwrite=True)


CHECKS = {
    "output": lambda path: check_output(path, resume=False, overwrite=False),
    "metrics": lambda path: check_document(path, flag="--metrics"),
    "workdir": lambda path: check_folder(path, flag="--workdir"),
}


@pytest.mark.parametrize("check", CHECKS.values(), ids=CHECKS)
def test_a_dash_is_refused_and_makes_no_file(tmp_path, monkeypatch, check):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match="is `-`, and results go to files") as refused:
        check(Path("-"))
    assert_reads_well(refused.value)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("check", CHECKS.values(), ids=CHECKS)
@pytest.mark.parametrize(
    "place",
    [lambda top: top / ("n" * 256) / "x.jsonl", lambda top: top / "/".join(["n" * 200] * 21) / "x.jsonl"],
    ids=["one folder", "all of them"],
)
def test_folder_names_too_long_for_a_file_system_are_refused(tmp_path, check, place):
    with pytest.raises(UsageError, match="is too long") as refused:
        check(place(tmp_path))
    assert_reads_well(refused.value)
    assert list(tmp_path.iterdir()) == []


def test_the_longest_folder_name_is_taken(tmp_path):
    check_folder(tmp_path / ("n" * 255), flag="--workdir")
    assert (tmp_path / ("n" * 255)).is_dir()


def test_no_two_outputs_share_a_metrics_file():
    names = ["a", "a.jsonl", "a.txt", "a.txt.jsonl", "a.json", "a.b", "a.b.jsonl", "a.metrics", "a-metrics.jsonl"]
    for one, other in itertools.combinations(names, 2):
        assert metrics_path(Path("f", one)) != metrics_path(Path("f", other))
    assert metrics_path(Path("dspark-out/decode.jsonl")) == Path("dspark-out/decode.metrics.json")


@pytest.mark.parametrize("flag", ["--output", "--metrics"])
@pytest.mark.parametrize("name", ["", ".", "/"])
def test_a_name_that_names_no_file_is_refused(tmp_path, flag, name):
    given = {"--output": (Path(name), None), "--metrics": (None, Path(name))}[flag]
    with pytest.raises(UsageError, match=f"{flag} .* names no file") as caught:
        DecodePlaces.named(*given, workdir=tmp_path)
    assert_reads_well(caught.value)
