"""Work directories: what is read, what is refused."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from profile_samples import make_profile
from refusals import assert_reads_well
from report_samples import PAIR, decode_metrics, make_rounds, make_run

from dspark.calibration import CalibrationError, Provenance, calibrate, save_calibration, write_traces
from dspark.engine.errors import UsageError
from dspark.engine.report.errors import ReportError
from dspark.engine.report.run import load_run, load_runs
from dspark.profiles import ModelShape, ProfileError, save_profile


def write_metrics(folder, **engine):
    (folder / "decode.metrics.json").write_text(json.dumps(decode_metrics(**engine)))


def test_whatever_exists_is_read(tmp_path):
    write_traces(make_rounds(20), tmp_path / "traces.parquet")
    run = load_run(tmp_path, name="r")
    assert (run.artefacts, run.gamma, run.notes) == (("traces.parquet",), 7, ())
    make_run(tmp_path)
    write_metrics(tmp_path)
    run = load_run(tmp_path, name="r")
    assert run.artefacts == ("profile.json", "calibration.json", "traces.parquet", "decode.metrics.json")
    assert run.notes == ()


@pytest.mark.parametrize("source", ["decode.metrics.json", "traces.parquet", "calibration.json", "profile.json"])
@pytest.mark.parametrize(
    ("target", "drafter", "flags"),
    [
        ("smollm2-135m", "smollm2-135m-dspark", ""),
        ("smollm2-135m", "ngram", " --drafter ngram"),
        ("./my llama", "tiny", " --target './my llama' --drafter tiny"),
    ],
    ids=["built-in", "another drafter", "another pair"],
)
def test_commands_name_the_pair_of_what_is_there(tmp_path, monkeypatch, source, target, drafter, flags):
    monkeypatch.chdir(tmp_path)
    folder = Path("else")
    folder.mkdir()
    rounds = make_rounds(200, provenance=replace(PAIR, target=target, drafter=drafter))
    if source == "decode.metrics.json":
        document = {**decode_metrics(), "manifest": {"target": target, "drafter": drafter}}
        (folder / source).write_text(json.dumps(document))
    elif source == "traces.parquet":
        write_traces(rounds, folder / source)
    elif source == "calibration.json":
        save_calibration(calibrate(rounds), folder / source)
    else:
        conditions = make_profile().conditions
        named = {
            role: replace(getattr(conditions, role), name=name)
            for role, name in (("target", target), ("drafter", drafter))
        }
        save_profile(make_profile(**named), folder / source)
    run = load_run(folder, name="r")
    assert run.command_for("profile.json") == f"dspark profile{flags} --workdir else"
    assert run.command_for("traces.parquet") == f"dspark calibrate{flags} --workdir else"


def test_commands_leave_out_the_usual_work_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("dspark-out").mkdir()
    write_metrics(Path("dspark-out"))
    assert load_run(Path("dspark-out"), name="r").command_for("profile.json") == "dspark profile"


def test_a_plain_decode_does_not_hide_the_drafter_of_the_rest(tmp_path):
    write_traces(make_rounds(20), tmp_path / "traces.parquet")
    document = {**decode_metrics(drafter="none"), "manifest": {"target": "tiny", "drafter": "none"}}
    (tmp_path / "decode.metrics.json").write_text(json.dumps(document))
    assert "--target tiny --drafter tiny-drafter" in load_run(tmp_path, name="r").command_for("profile.json")
    (tmp_path / "traces.parquet").unlink()
    assert (
        load_run(tmp_path, name="r").command_for("profile.json") == f"dspark profile --target tiny --workdir {tmp_path}"
    )


@pytest.mark.parametrize("manifest", [None, [], {"target": 3, "drafter": None}], ids=str)
def test_names_that_no_decode_writes_are_not_repeated(tmp_path, monkeypatch, manifest):
    monkeypatch.chdir(tmp_path)
    Path("dspark-out").mkdir()
    Path("dspark-out/decode.metrics.json").write_text(json.dumps({**decode_metrics(), "manifest": manifest}))
    assert load_run(Path("dspark-out"), name="r").command_for("profile.json") == "dspark profile"


def test_random_weights_are_no_pair_to_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("dspark-out").mkdir()
    dummy = {
        "target": ModelShape("qwen3-4b", None, {}),
        "drafter": ModelShape("a drafter shaped for qwen3-4b", None, {}),
    }
    save_profile(make_profile(**dummy), Path("dspark-out/profile.json"))
    assert load_run(Path("dspark-out"), name="r").command_for("traces.parquet") == "dspark calibrate"


def test_runs_are_named_by_what_tells_them_apart(tmp_path):
    folders = [make_run(tmp_path / name, rounds=20) for name in ("a/x", "b/x", "c/y")]
    assert [run.name for run in load_runs(folders[1:])] == ["x", "y"]
    assert [run.name for run in load_runs(folders[:2])] == [str(folder) for folder in folders[:2]]


def test_a_run_given_twice_is_refused(tmp_path):
    folder = make_run(tmp_path / "x", rounds=20)
    with pytest.raises(ReportError, match="was given twice") as caught:
        load_runs([folder, tmp_path / "." / "x"])
    assert_reads_well(caught.value)


@pytest.mark.parametrize(
    ("where", "kind", "sentence"),
    [
        ("missing", UsageError, "missing does not exist"),
        ("file", UsageError, "file is no folder"),
        ("empty", ReportError, "empty holds nothing to report on"),
    ],
    ids=["missing", "file", "empty"],
)
def test_a_folder_without_artefacts_is_refused(tmp_path, where, kind, sentence):
    (tmp_path / "file").write_text("")
    (tmp_path / "empty").mkdir()
    with pytest.raises(kind, match=sentence) as caught:
        load_run(tmp_path / where, name="r")
    assert_reads_well(caught.value)


@pytest.mark.parametrize("artefact", ["profile.json", "calibration.json", "traces.parquet", "decode.metrics.json"])
def test_an_artefact_that_is_a_link_to_nowhere_is_refused_and_not_left_out(tmp_path, artefact):
    write_traces(make_rounds(20), tmp_path / "traces.parquet")
    (tmp_path / artefact).unlink(missing_ok=True)
    (tmp_path / artefact).symlink_to("nowhere")
    with pytest.raises((ReportError, ProfileError, CalibrationError), match=rf"{artefact} (cannot|does not)") as caught:
        load_run(tmp_path, name="r")
    assert_reads_well(caught.value)


OTHER = {"target": "ffff", "drafter": "eeee"}


@pytest.mark.parametrize("role", ["target", "drafter"])
@pytest.mark.parametrize("artefact", ["profile", "calibration", "traces", "metrics"])
def test_an_artefact_of_another_pair_is_refused(tmp_path, artefact, role):
    make_run(tmp_path, rounds=200)
    write_metrics(tmp_path)
    other = replace(PAIR, **{role: "another", f"{role}_fingerprint": OTHER[role]})
    if artefact == "profile":
        conditions = make_profile().conditions
        model = replace(getattr(conditions, role), name="another", fingerprint=OTHER[role])
        save_profile(make_profile(**{role: model}), tmp_path / "profile.json")
    elif artefact == "calibration":
        save_calibration(calibrate(make_rounds(200, provenance=other)), tmp_path / "calibration.json")
    elif artefact == "traces":
        write_traces(make_rounds(200, provenance=other), tmp_path / "traces.parquet")
    else:
        write_metrics(tmp_path, **{role: OTHER[role]})
    with pytest.raises(
        ReportError, match=f"is of {role} .*{OTHER[role]}|{OTHER[role]}.* is of {role}|{OTHER[role]}"
    ) as caught:
        load_run(tmp_path, name="r")
    assert_reads_well(caught.value)


@pytest.mark.parametrize(
    ("traces", "what"),
    [
        (make_rounds(20, 5), "draft length"),
        (make_rounds(20, provenance=replace(PAIR, acceptance="coupled")), "acceptance mode"),
        (make_rounds(20, provenance=Provenance("tiny", "else", "rejection")), "drafter"),
    ],
    ids=["draft length", "acceptance", "name without fingerprint"],
)
def test_what_else_belongs_to_a_pair(tmp_path, traces, what):
    make_run(tmp_path, rounds=200)
    write_traces(traces, tmp_path / "traces.parquet")
    with pytest.raises(ReportError, match=what) as caught:
        load_run(tmp_path, name="r")
    assert_reads_well(caught.value)


def test_what_cannot_be_compared_is_noted(tmp_path):
    make_run(tmp_path, rounds=20)
    (tmp_path / "calibration.json").unlink()
    write_traces(make_rounds(20, provenance=Provenance()), tmp_path / "traces.parquet")
    assert load_run(tmp_path, name="r").notes == (
        "profile.json and traces.parquet could not be compared: one does not name its target.",
        "profile.json and traces.parquet could not be compared: one does not name its drafter.",
    )


def test_a_profile_of_random_weights_serves_a_drafter_of_any_name(tmp_path):
    make_run(tmp_path, rounds=20)
    dummy = {"target": ModelShape("tiny", None, {}), "drafter": ModelShape("a drafter shaped for tiny", None, {})}
    save_profile(make_profile(**dummy), tmp_path / "profile.json")
    assert all("drafter" in note for note in load_run(tmp_path, name="r").notes)


def test_a_plain_decode_names_no_drafter_and_is_of_the_same_pair(tmp_path):
    make_run(tmp_path, rounds=20)
    write_metrics(tmp_path, drafter="none", policy="none")
    assert load_run(tmp_path, name="r").decode is not None


def test_other_sampling_than_was_calibrated_on_is_noted(tmp_path):
    make_run(tmp_path, rounds=200)
    write_traces(make_rounds(20, temperature=1.0), tmp_path / "traces.parquet")
    (note,) = load_run(tmp_path, name="r").notes
    assert "temperature 1.0" in note and "calibration.json was fitted on none such" in note


@pytest.mark.parametrize("content", ["", "{", "[]", "{}", '{"spec": NaN}', '{"spec": {}}', "\udcff"])
@pytest.mark.parametrize("file", ["decode.metrics.json", "profile.json", "calibration.json", "traces.parquet"])
def test_a_damaged_artefact_is_one_sentence(tmp_path, file, content):
    (tmp_path / file).write_bytes(content.encode("utf-8", "surrogateescape"))
    with pytest.raises((ReportError, ProfileError, CalibrationError)) as caught:
        load_run(tmp_path, name="r")
    assert file in str(caught.value)
    assert "\n" not in str(caught.value)
    assert caught.value.remedy


@pytest.mark.parametrize(
    "change",
    [{"acceptance_histogram": [1, -1]}, {"acceptance_histogram": [0.5]}, {"rounds": None}, {"accepted": True}],
    ids=str,
)
def test_counts_that_no_decode_writes_are_refused(tmp_path, change):
    metrics = decode_metrics()
    metrics["spec"] |= change
    (tmp_path / "decode.metrics.json").write_text(json.dumps(metrics))
    with pytest.raises(ReportError, match="is not what `dspark decode` writes") as caught:
        load_run(tmp_path, name="r")
    assert_reads_well(caught.value)
