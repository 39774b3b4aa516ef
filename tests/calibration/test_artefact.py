"""`calibration.json`: strict, complete, and refused where it does not belong."""

from __future__ import annotations

import json
import math
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from damaged_json import damaged_documents
from standard_json import strict

from dspark.calibration import (
    Calibration,
    CalibrationError,
    Provenance,
    SamplingSettings,
    calibrate,
    calibration_from_dict,
    calibration_to_dict,
    check_calibration,
    check_sampling,
    load_calibration,
    make_traces,
    measure,
    save_calibration,
)
from dspark.calibration.verdict import verdict

WHO = Provenance("target", "drafter", "rejection", "aa", "bb")


@pytest.fixture(scope="module")
def made(simulate) -> Calibration:
    traces = simulate(3000, (0.5, 2.0), provenance=WHO, temperature=1.0, top_k=0, top_p=0.9, policy="fixed:2")
    return calibrate(traces, trace_names=["traces.parquet"], seed=3)


def test_saved_and_loaded_is_the_same(made: Calibration, tmp_path: Path) -> None:
    save_calibration(made, tmp_path / "calibration.json")
    assert load_calibration(tmp_path / "calibration.json") == made
    assert [p.name for p in tmp_path.iterdir()] == ["calibration.json"]


def test_names_of_other_bytes_come_back_from_the_file(made: Calibration, tmp_path: Path) -> None:
    names = replace(made, trace_names=("tr\udcff.parquet",), provenance=replace(WHO, target="\udcfe"))
    save_calibration(names, tmp_path / "c.json")
    strict((tmp_path / "c.json").read_text(encoding="utf-8"))
    assert load_calibration(tmp_path / "c.json") == names


def test_the_document_says_what_it_rests_on(made: Calibration, tmp_path: Path) -> None:
    save_calibration(made, tmp_path / "c.json")
    document = strict((tmp_path / "c.json").read_text(encoding="utf-8"))
    assert document["temperatures"] == list(made.temperatures)
    assert document["gamma"] == 2
    assert document["provenance"]["target"] == "target"
    assert document["sampling"] == [{"temperature": 1.0, "top_k": 0, "top_p": 0.9}]
    assert document["fitted_on"]["rounds"] + document["held_out"]["rounds"] == 3000
    assert document["fitted_on"]["policies"] == ["fixed:2"]
    assert len(document["trace_fingerprint"]) == 16
    metrics = document["positions"][0]["metrics"]
    assert metrics["after"]["ece"] < metrics["before"]["ece"]
    assert sum(metrics["after"]["reliability"]["count"]) == metrics["rounds"]
    assert metrics["accepted"]["low"] < metrics["accepted"]["rate"] < metrics["accepted"]["high"]


def test_the_same_traces_and_seed_give_the_same_file(simulate) -> None:
    one, two = (calibrate(simulate(800, (0.7, 1.4)), seed=1) for _ in range(2))
    assert calibration_to_dict(one) == calibration_to_dict(two)


HOSTILE = {
    "one row": {"request": [0], "accepted": [0], "confidence_logits": [[0.0, 0.0]]},
    "two rows": {"request": [0, 1], "accepted": [0, 2], "confidence_logits": [[0.0, 0.0], [1.0, 1.0]]},
    "nothing verified": {"request": [0, 1], "accepted": 0, "verified": 0, "confidence_logits": np.zeros((2, 2))},
    "nothing drafted": {"request": [0, 1], "accepted": 0, "drafted": 0, "confidence_logits": np.full((2, 2), np.nan)},
    "all accepted": {"request": np.arange(500), "accepted": 2, "confidence_logits": np.zeros((500, 2))},
    "none accepted": {"request": np.arange(500), "accepted": 0, "confidence_logits": np.zeros((500, 2))},
    "p exactly 0 and 1": {
        "request": np.arange(400),
        "accepted": np.arange(400) % 2,
        "confidence_logits": np.where(np.arange(400) % 4 < 2, 1e30, -1e30)[:, None],
    },
    "p on a bin edge": {
        "request": np.arange(400),
        "accepted": np.arange(400) % 2,
        "confidence_logits": np.zeros((400, 1)),
    },
    "deep positions never verified": {
        "request": np.arange(400),
        "accepted": np.arange(400) % 2,
        "verified": 1,
        "confidence_logits": np.random.default_rng(0).normal(size=(400, 3)),
    },
}


@pytest.mark.parametrize("method", ["sts", "joint", "nll"])
@pytest.mark.parametrize("columns", HOSTILE.values(), ids=HOSTILE.keys())
@pytest.mark.filterwarnings("error")
def test_hostile_numbers_never_reach_json_as_nan(columns: dict[str, Any], method: str, tmp_path: Path) -> None:
    result = calibrate(make_traces(**columns), method)
    assert all(0.1 <= t <= 10 for t in result.temperatures)
    assert result.warnings
    save_calibration(result, tmp_path / "c.json")
    strict((tmp_path / "c.json").read_text(encoding="utf-8"))
    assert load_calibration(tmp_path / "c.json") == result


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda d: d.pop("format"), "no format `dspark-calibration`"),
        (lambda d: d.update(version=9), "version 9"),
        (lambda d: d.pop("verdict"), "damaged: `verdict` is missing"),
        (lambda d: d.update(temperatures=[1.0, 0.0]), "not a positive number"),
        (lambda d: d.update(temperatures=[1.0, None]), r"`temperatures\[1\]` is null, not a number"),
        (lambda d: d.update(temperatures=[1.0, True]), r"`temperatures\[1\]` is true, not a number"),
        (lambda d: d.update(temperatures=[1.0]), "different lengths"),
        (
            lambda d: d.update(temperatures=[1e-300, 1.0]),
            r"`temperatures\[0\]` is 1e-300, not a positive",
        ),
        (
            lambda d: d.update(temperatures=[1.0, 1e300]),
            r"`temperatures\[1\]` is 1e\+300, not a positive",
        ),
        (lambda d: d.update(holdout=7.0), r"c.json is damaged: `holdout` is 7\.0, not a share"),
        (lambda d: d.update(seed=-1), "`seed` is -1"),
        (lambda d: d.update(method="guess"), '`method` is "guess", not one of sts, joint, nll'),
        (lambda d: d.update(sampling=[]), r"`sampling` is \[\], not a list of at least one"),
        (lambda d: d.update(bins=0), "`bins` is 0, not a whole number from 1 to 1000"),
        (lambda d: d.update(bins=5), r"`positions\[0\].metrics.before.reliability` does not have `bins` = 5 bins"),
        (lambda d: d["fitted_on"].update(rounds=-3), "`fitted_on.rounds` is -3, not a whole number from 1 on"),
        (lambda d: d["held_out"].update(requests=-1), "`held_out.requests` is -1, not a whole number from 0 on"),
        (lambda d: d["grid"].update(points=10**9), "`grid`: a grid of 1000000000 temperatures"),
        (lambda d: d["positions"][0]["fit"].update(mood=1), r"damaged: `positions\[0\].fit.mood` is not known"),
    ],
)
def test_damaged_files_are_one_sentence(made: Calibration, tmp_path: Path, change: Any, sentence: str) -> None:
    document = calibration_to_dict(made)
    change(document)
    (tmp_path / "c.json").write_text(json.dumps(document))
    with pytest.raises(CalibrationError, match=sentence) as caught:
        load_calibration(tmp_path / "c.json")
    assert "dspark calibrate" in caught.value.remedy


@pytest.mark.parametrize("name", ["version", "temperatures", "rounds"])
def test_a_key_that_stands_twice_is_refused_by_name(made: Calibration, tmp_path: Path, name: str) -> None:
    text = json.dumps(calibration_to_dict(made)).replace(f'"{name}":', f'"{name}": 1, "{name}":', 1)
    (tmp_path / "c.json").write_text(text)
    with pytest.raises(CalibrationError, match=rf"c\.json .*`{name}` stands twice in one object"):
        load_calibration(tmp_path / "c.json")


def test_no_value_in_place_of_another_gives_more_than_a_sentence(made: Calibration) -> None:
    document = calibration_to_dict(made)
    document["positions"] = document["positions"][:1]
    document["temperatures"] = document["temperatures"][:1]
    document["gamma"] = 1
    calibration_from_dict(document)
    tried = 0
    for place, damaged in damaged_documents(document):
        tried += 1
        with suppress(CalibrationError):
            assert calibration_to_dict(calibration_from_dict(damaged)), place
    assert tried > 500


@pytest.mark.parametrize(
    ("path", "value", "sentence"),
    [
        (("rounds",), True, "`positions[1].metrics.rounds` is true, not a whole number"),
        (("survived", "rate"), "x", '`positions[1].metrics.survived.rate` is "x", not a number'),
        (("after", "ece"), [], "`positions[1].metrics.after.ece` is [], not a number"),
        (("after", "ece_null"), 1, "`positions[1].metrics.after.ece_null` is 1, not an object"),
        (("after", "reliability", "count"), None, "`positions[1].metrics.after.reliability.count` is null, not a list"),
        (("before", "nll"), math.inf, "`positions[1].metrics.before.nll` is Infinity, not a number"),
    ],
    ids=["true", "text", "list", "number", "null", "infinity"],
)
def test_a_refused_value_is_named_by_its_place(
    made: Calibration, path: tuple[str, ...], value: Any, sentence: str
) -> None:
    document = calibration_to_dict(made)
    place = document["positions"][1]["metrics"]
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    with pytest.raises(CalibrationError) as refused:
        calibration_from_dict(document, source="c.json")
    assert str(refused.value) == f"c.json is damaged: {sentence}"


def test_a_number_too_large_to_keep_is_no_json(made: Calibration, tmp_path: Path) -> None:
    text = json.dumps(calibration_to_dict(made)).replace('"bins": 20', '"bins": 1e999')
    assert "1e999" in text
    (tmp_path / "c.json").write_text(text)
    with pytest.raises(CalibrationError, match="is not strict JSON"):
        load_calibration(tmp_path / "c.json")


@pytest.mark.parametrize("text", ["", "[]", "{", '{"format": NaN}', "[" * 100_000], ids=lambda t: t[:16] or "empty")
def test_other_files_are_one_sentence(tmp_path: Path, text: str) -> None:
    (tmp_path / "c.json").write_text(text)
    with pytest.raises(CalibrationError):
        load_calibration(tmp_path / "c.json")


def test_missing_file_and_folder(made: Calibration, tmp_path: Path) -> None:
    with pytest.raises(CalibrationError, match="cannot be read"):
        load_calibration(tmp_path / "c.json")
    (tmp_path / "file").touch()
    with pytest.raises(CalibrationError, match="cannot be written"):
        save_calibration(made, tmp_path / "file" / "c.json")
    (tmp_path / "folder.json").mkdir()
    with pytest.raises(CalibrationError, match="cannot be written"):
        save_calibration(made, tmp_path / "folder.json")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["file", "folder.json"]
    # One that was removed during a long run is made again.
    save_calibration(made, tmp_path / "new" / "c.json")
    assert load_calibration(tmp_path / "new" / "c.json") == made


def test_what_belongs_is_accepted(made: Calibration) -> None:
    assert check_calibration(made, WHO, gamma=2) == []
    assert check_sampling(made, SamplingSettings(1.0, 0, 0.9)) == []
    # A folder may move: the fingerprint decides.
    assert check_calibration(made, replace(WHO, target="elsewhere", drafter="there"), gamma=2) == []


@pytest.mark.parametrize(
    ("present", "gamma", "sentence"),
    [
        (WHO, 3, "draft length 2, and the drafter drafts 3"),
        (replace(WHO, target_fingerprint="cc"), 2, "another target: other weights of target"),
        (replace(WHO, target="big", target_fingerprint=None), 2, "another target: target, not big"),
        (replace(WHO, drafter="x", drafter_fingerprint="cc"), 2, "another drafter: drafter, not x"),
        (replace(WHO, acceptance="coupled"), 2, "acceptance mode rejection, not coupled"),
    ],
)
def test_what_does_not_belong_is_refused(made: Calibration, present: Provenance, gamma: int, sentence: str) -> None:
    with pytest.raises(CalibrationError, match=sentence) as caught:
        check_calibration(made, present, gamma=gamma)
    assert "dspark calibrate" in caught.value.remedy


@pytest.mark.parametrize(("temperatures", "warns"), [((4.0, 4.0), True), ((1.0, 1.0), False)], ids=["worse", "same"])
def test_a_calibration_that_did_harm_where_it_was_measured_warns(
    made: Calibration, simulate, temperatures: tuple[float, float], warns: bool
) -> None:
    # The head that is simulated says the truth already.
    metrics = measure(simulate(3000, (1.0, 1.0)), temperatures, rng=np.random.default_rng(0))
    positions = tuple(replace(p, metrics=m) for p, m in zip(made.positions, metrics, strict=True))
    warnings = check_calibration(replace(made, positions=positions), WHO, gamma=2)
    assert [("made the confidences worse" in warning) for warning in warnings] == [True] * warns
    fits = [position.fit for position in made.positions]
    assert verdict(fits, metrics, held_out=True).startswith("Calibration made the confidences worse") == warns


def test_other_sampling_and_unrecorded_models_warn(made: Calibration) -> None:
    greedy = SamplingSettings(0.0, 0, 1.0)
    (warning,) = check_sampling(made, greedy)
    assert "temperature 0.0" in warning and "temperature 1.0" in warning
    unrecorded = replace(made, provenance=Provenance(), sampling=())
    assert len(check_calibration(unrecorded, WHO, gamma=2)) == 3
    (warning,) = check_sampling(unrecorded, greedy)
    assert "made with settings that were not recorded" in warning


@pytest.mark.parametrize(
    ("recorded", "present", "told"),
    [
        (0, None, None),
        (16, 16, None),
        (None, 16, None),
        (16, None, "from all tokens, but the calibration was made with drafts from the 16 likeliest tokens"),
        (0, 16, "from the 16 likeliest tokens, but the calibration was made with drafts from all tokens"),
    ],
    ids=["all", "sixteen", "unrecorded", "now-all", "now-sixteen"],
)
def test_drafts_from_other_tokens_warn_where_they_are_sampled(
    made: Calibration, recorded: int | None, present: int | None, told: str | None
) -> None:
    cut = replace(made, provenance=replace(WHO, draft_top_k=recorded), sampling=(SamplingSettings(1.0, 0, 0.9),))
    warnings = check_sampling(cut, SamplingSettings(1.0, 0, 0.9), draft_top_k=present)
    assert told in warnings[0] if told else not warnings, warnings
    greedy = replace(cut, sampling=(SamplingSettings(0.0, 0, 1.0),))
    assert check_sampling(greedy, SamplingSettings(0.0, 0, 1.0), draft_top_k=present) == []


def test_greedy_is_greedy_under_every_truncation(made: Calibration) -> None:
    greedy = replace(made, sampling=(SamplingSettings(0.0, 0, 1.0),))
    assert check_sampling(greedy, SamplingSettings(0.0, 40, 0.5)) == []
