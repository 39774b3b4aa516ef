"""`calibrate` on recorded rounds: from trace files to calibration.json, and what is refused."""

from __future__ import annotations

import ast
import subprocess
import sys
from inspect import signature
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from standard_json import strict

from dspark.calibration import (
    METHODS,
    Provenance,
    TemperatureGrid,
    calibrate,
    load_calibration,
    make_traces,
    traces_to_frame,
    write_traces,
)
from dspark.cli.calibrate import calibrate as command
from dspark.cli.main import main

TRUTH = (0.5, 1.0, 2.0)


def simulated(rounds=6000, *, seed=0, **columns):
    rng = np.random.default_rng(seed)
    logits = rng.normal(1.0, 1.5, size=(rounds, len(TRUTH)))
    passed = rng.random(logits.shape) < 1 / (1 + np.exp(-logits))
    return make_traces(
        request=np.arange(rounds) // 20,
        accepted=np.cumprod(passed, axis=1).sum(axis=1),
        confidence_logits=logits * np.array(TRUTH),
        **columns,
    )


def written_tuple(err):
    (line,) = [line for line in err.splitlines() if line.startswith("temperatures = ")]
    return ast.literal_eval(line.removeprefix("temperatures = "))


def test_recorded_rounds_give_a_calibration_and_say_what_it_is_worth(here, capsys):
    write_traces(simulated(), Path("t.parquet"))
    assert main(["calibrate", "--traces", "t.parquet", "--method", "nll", "--json"]) == 0
    captured = capsys.readouterr()
    made = load_calibration(Path("dspark-out/calibration.json"))
    np.testing.assert_allclose(made.temperatures, TRUTH, rtol=0.15)
    np.testing.assert_allclose(written_tuple(captured.err), made.temperatures, rtol=1e-5)
    document = strict(captured.out)
    assert document["temperatures"] == list(made.temperatures)
    assert document["verdict"] == made.verdict
    assert [p["after"]["ece"] for p in document["positions"]] == [p.metrics.after.ece for p in made.positions]
    assert "Calibration helped" in captured.err
    assert sorted(path.name for path in Path("dspark-out").iterdir()) == ["calibration.json"]


@pytest.mark.parametrize(("rounds", "left"), [(100, True), (2000, False)], ids=["few", "enough"])
def test_a_temperature_that_was_left_is_explained_below_its_table(here, capsys, rounds, left):
    write_traces(simulated(rounds), Path("t.parquet"))
    assert main(["calibrate", "--traces", "t.parquet", "--method", "nll"]) == 0
    told = capsys.readouterr().err
    assert ("1 (left)" in told) == ("T is 1 (left) where too little was observed to fit one." in told) == left


def test_a_calibration_of_other_models_is_not_replaced_by_recorded_rounds_unasked(here, capsys):
    for name in ("one", "other"):
        pair = Provenance("target", name, "rejection", "0123", "4567")
        write_traces(simulated(300, provenance=pair), Path(f"{name}.parquet"))
    calibrated = ["calibrate", "--quiet", "--traces"]
    assert main([*calibrated, "one.parquet"]) == main([*calibrated, "one.parquet"]) == 0
    before = Path("dspark-out/calibration.json").read_bytes()
    assert main([*calibrated, "other.parquet"]) == 2
    assert "is of target with one, and would be replaced by one of target with other" in capsys.readouterr().err
    assert Path("dspark-out/calibration.json").read_bytes() == before
    assert main([*calibrated, "other.parquet", "--overwrite"]) == 0
    assert load_calibration(Path("dspark-out/calibration.json")).provenance.drafter == "other"


def test_every_option_of_the_fit_arrives(here):
    traces = simulated(3000)
    write_traces(traces, Path("t.parquet"))
    arguments = ["--method", "joint", "--bins", "7", "--grid", "0.2,4,31", "--holdout", "0.5", "--seed", "3"]
    assert main(["calibrate", "--traces", "t.parquet", "--quiet", *arguments]) == 0
    expected = calibrate(
        traces, "joint", bins=7, grid=TemperatureGrid(0.2, 4, 31), holdout=0.5, seed=3, trace_names=["t.parquet"]
    )
    assert load_calibration(Path("dspark-out/calibration.json")) == expected


def test_defaults_are_those_of_the_library(here):
    flags = {name: parameter.default for name, parameter in signature(command).parameters.items()}
    fit = {name: parameter.default for name, parameter in signature(calibrate).parameters.items()}
    assert (flags["method"], flags["bins"], flags["holdout"]) == (fit["method"], fit["bins"], fit["holdout"])
    low, high, points = flags["grid"].split(",")
    assert TemperatureGrid(float(low), float(high), int(points)) == fit["grid"]
    assert flags["method"] in METHODS


def test_several_files_follow_one_flag(here, capsys):
    for seed in range(3):
        write_traces(simulated(1000, seed=seed), Path(f"{seed}.parquet"))
    assert main(["calibrate", "--traces", "0.parquet", "1.parquet", "--traces", "2.parquet", "--json"]) == 0
    document = strict(capsys.readouterr().out)
    assert sorted(document["traces"]) == ["0.parquet", "1.parquet", "2.parquet"]
    assert sum(document["rounds"].values()) == 3000


def test_shards_of_sglang(here):
    traces = simulated(3000)
    mask = np.arange(3) < traces.accepted[:, None]
    for name, rows in (("a.pt", slice(0, 1500)), ("b.pt", slice(1500, None))):
        logits = torch.from_numpy(traces.confidence_logits[rows])
        torch.save({"logits": logits, "prefix_mask": torch.from_numpy(mask[rows]).long()}, name)
    assert main(["calibrate", "--traces", "a.pt", "b.pt", "--method", "nll"]) == 0
    np.testing.assert_allclose(load_calibration(Path("dspark-out/calibration.json")).temperatures, TRUTH, rtol=0.2)


def test_recorded_rounds_need_no_model_library(here):
    write_traces(simulated(2000), Path("t.parquet"))
    code = (
        "import sys; from dspark.cli.main import main; code = main(sys.argv[1:]);"
        "print(sorted({'torch', 'transformers', 'triton', 'tokenizers'} & set(sys.modules))); sys.exit(code)"
    )
    arguments = [sys.executable, "-c", code, "calibrate", "--traces", "t.parquet", "--quiet"]
    done = subprocess.run(arguments, capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


HOSTILE = {
    "no rows": (traces_to_frame(simulated(20)).iloc[:0], "there are no rounds to calibrate on"),
    "a logit that is NaN": ({"confidence_logit_1": [np.nan, 1.0]}, "NaN or infinite"),
    "a logit that is infinite": ({"confidence_logit_1": [np.inf, 1.0]}, "NaN or infinite"),
    "accepted beyond the block": ({"accepted": [2, 0]}, "more positions were accepted than verified"),
    "half an acceptance": ({"accepted": [0.5, 0]}, "does not hold whole numbers"),
    "a round twice": ({"request": [0, 0], "round": [4, 4]}, "appear more than once"),
    "no requests": ({"request": [None, None]}, "name no request"),
    "words for logits": ({"confidence_logit_1": ["high", "low"]}, "does not hold numbers"),
    "a gap in the logits": ({"confidence_logit_3": [1.0, 1.0]}, "no `confidence_logit_2`"),
}


@pytest.mark.parametrize(("table", "sentence"), HOSTILE.values(), ids=HOSTILE.keys())
def test_hostile_tables_are_one_sentence(here, capsys, table, sentence):
    if isinstance(table, dict):
        table = pd.DataFrame({"request": [0, 1], "accepted": [1, 0], "confidence_logit_1": [0.5, 1.0]} | table)
    table.to_csv("t.csv", index=False)
    assert main(["calibrate", "--traces", "t.csv", "--json"]) == 1
    captured = capsys.readouterr()
    assert sentence in captured.err
    assert "Traceback" not in captured.err
    assert sentence in strict(captured.out)["error"]["message"]
    assert not Path("dspark-out/calibration.json").exists()


EXTREME = {
    "one row": {"request": [0], "accepted": [1], "confidence_logit_1": [0.0]},
    "all accepted": {"request": range(400), "accepted": 1, "confidence_logit_1": 2.0},
    "none accepted": {"request": range(400), "accepted": 0, "confidence_logit_1": 2.0},
    "certain": {"request": range(400), "accepted": [0, 1] * 200, "confidence_logit_1": [-1e30, 1e30] * 200},
    "certain and wrong": {"request": range(400), "accepted": [1, 0] * 200, "confidence_logit_1": [-1e30, 1e30] * 200},
    "on a bin edge": {"request": range(400), "accepted": [0, 1] * 200, "confidence_logit_1": 0.0},
    "trimmed": {
        "request": range(400),
        "accepted": [0, 1] * 200,
        "verified": 1,
        "confidence_logit_1": 1.0,
        "confidence_logit_2": 1.0,
    },
}


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("table", EXTREME.values(), ids=EXTREME.keys())
@pytest.mark.filterwarnings("error")
def test_extreme_tables_have_answers_that_are_numbers(here, capsys, table, method):
    pd.DataFrame(table).to_csv("t.csv", index=False)
    assert main(["calibrate", "--traces", "t.csv", "--method", method, "--json"]) == 0
    captured = capsys.readouterr()
    assert all(0.1 <= t <= 10 for t in strict(captured.out)["temperatures"])
    strict(Path("dspark-out/calibration.json").read_text())
    assert "nan" not in captured.err.lower()


def test_files_of_two_draft_lengths_are_refused(here, capsys):
    write_traces(simulated(100), Path("three.parquet"))
    two = make_traces(request=[0, 1], accepted=[0, 1], confidence_logits=np.zeros((2, 2)))
    write_traces(two, Path("two.parquet"))
    assert main(["calibrate", "--traces", "three.parquet", "two.parquet"]) == 1
    assert "three.parquet has 3 draft positions and two.parquet has 2" in capsys.readouterr().err


USAGE = {
    "trace without flag": (["t.parquet"], "t.parquet belongs to no option"),
    "both": (["--traces", "t.parquet", "-i", "in.jsonl"], "--traces and --input exclude each other"),
    "method": (["--method", "platt"], "--method is 'platt'\n  Choose one of: sts, joint, nll."),
    "holdout": (["--holdout", "1"], "--holdout is 1.0"),
    "holdout nan": (["--holdout", "nan"], "--holdout is nan"),
    "grid of two": (["--grid", "1,2"], "--grid is '1,2', not three numbers"),
    "grid of words": (["--grid", "low,high,many"], "not three numbers"),
    "grid backwards": (["--grid", "4,0.2,10"], "cannot be searched"),
    "grid nan": (["--grid", "nan,2,10"], "cannot be searched"),
    "grid of tiny and huge": (["--grid", "1e-300,1e300,61"], "cannot be searched"),
    "grid without end": (["--grid", "0.1,10,1000000000000"], "cannot be searched"),
    "bins": (["--bins", "0"], "--bins"),
    "bins without end": (["--bins", "100000000000000000000"], "--bins"),
    "seed": (["--seed", "-1"], "--seed"),
    "device": (["--device", "tpu"], "--device is 'tpu'"),
    "top-p": (["--top-p", "0"], "--top-p is 0"),
    "no drafter": (["--drafter", "none"], "has no drafter to calibrate"),
    "target alone": (["--target", "mine"], "the target mine has no drafter to calibrate\n  Name one with --drafter."),
    "input": (["-i", "nowhere.jsonl"], "cannot read nowhere.jsonl"),
    "workdir": (["--workdir", "file"], "Give another --workdir."),
    "two at once": (
        ["--method", "platt", "--holdout", "2"],
        "--method is 'platt'\n  Choose one of: sts, joint, nll.\ndspark: --holdout is 2.0\n  Give a share",
    ),
}


@pytest.mark.parametrize(("arguments", "sentence"), USAGE.values(), ids=USAGE.keys())
def test_usage(here, capsys, arguments, sentence):
    Path("file").touch()
    assert main(["calibrate", *arguments]) == 2
    assert sentence in capsys.readouterr().err


def test_a_missing_trace_file_is_a_failure(here, capsys):
    assert main(["calibrate", "--traces", "nowhere.parquet"]) == 1
    assert "nowhere.parquet does not exist" in capsys.readouterr().err
