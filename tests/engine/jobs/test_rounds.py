"""The rounds of a run: a table of them that is written as they come, and totals that stay small."""

from dataclasses import replace

import pandas as pd
import pytest

from dspark.engine.errors import UsageError
from dspark.engine.jobs import round_file
from dspark.engine.jobs.round_file import RoundFile
from dspark.engine.jobs.round_totals import RoundTotals
from dspark.engine.round_meter import RoundMetrics

ROUND = RoundMetrics(
    requests=2,
    batch_tokens=10,
    bucket=16,
    emitted=5,
    wasted_tokens=0,
    drafted_tokens=14,
    expected_tokens=4.5,
    predicted_s=0.010,
    predicted_step_s=0.008,
    measured_s=0.012,
    measured_step_s=0.009,
)
UNPLANNED = replace(ROUND, expected_tokens=None, predicted_s=None, predicted_step_s=None)
ROUNDS = [
    replace(ROUND, measured_s=None, measured_step_s=None),
    ROUND,
    replace(ROUND, bucket=8, batch_tokens=7, emitted=3, wasted_tokens=3, measured_s=0.008, measured_step_s=0.005),
]
KINDS = pytest.mark.parametrize("ending", ["parquet", "csv"])


def write(path, rounds):
    with RoundFile(path).writing() as add:
        for round in rounds:
            add(round)


def read(path):
    return pd.read_parquet(path) if path.suffix == ".parquet" else pd.read_csv(path)


@KINDS
@pytest.mark.parametrize("count", [0, 3, 7], ids=str)
def test_a_table_holds_every_round_in_order(tmp_path, monkeypatch, ending, count):
    monkeypatch.setattr(round_file, "_ROUNDS_AT_ONCE", 3)
    path = tmp_path / f"rounds.{ending}"
    write(path, [replace(ROUND, emitted=n) for n in range(count)])
    table = read(path)
    assert table["round"].tolist() == table["emitted_tokens"].tolist() == list(range(count))
    if count:
        row = table.iloc[-1]
        assert (row["requests"], row["batch_tokens"], row["bucket"], row["expected_tokens"]) == (2, 10, 16, 4.5)
        assert (row["predicted_step_s"], row["predicted_round_s"]) == (0.008, 0.010)
        assert (row["measured_step_s"], row["measured_round_s"]) == (0.009, 0.012)


@KINDS
def test_what_was_not_planned_or_measured_is_missing(tmp_path, ending):
    path = tmp_path / f"rounds.{ending}"
    write(path, [replace(UNPLANNED, measured_s=None, measured_step_s=None), ROUND])
    missing = read(path).isna()
    for name in ("expected_tokens", *(f"{a}_{b}_s" for a in ("predicted", "measured") for b in ("step", "round"))):
        assert missing[name].tolist() == [True, False]


@KINDS
def test_a_run_that_fails_leaves_the_table_before(tmp_path, monkeypatch, ending):
    monkeypatch.setattr(round_file, "_ROUNDS_AT_ONCE", 1)
    path = tmp_path / f"rounds.{ending}"
    write(path, ROUNDS)
    before = path.read_bytes()
    with pytest.raises(KeyboardInterrupt), RoundFile(path).writing() as add:
        add(ROUND)
        raise KeyboardInterrupt
    assert path.read_bytes() == before and list(tmp_path.iterdir()) == [path]


def test_another_ending_is_refused(tmp_path):
    with pytest.raises(UsageError, match=r"rounds\.json has no ending of a table"):
        RoundFile(tmp_path / "rounds.json")


def test_totals_compare_what_was_both_planned_and_measured():
    totals = RoundTotals()
    for round in ROUNDS:
        totals.add(round)
    assert totals.to_dict() == {
        "rounds": 3,
        "batch_tokens": 27,
        "wasted_tokens": 3,
        "emitted": 13,
        "plan": {
            "rounds": 2,
            "expected_tokens": 9.0,
            "emitted": 8,
            "predicted_s": pytest.approx(0.020),
            "measured_s": pytest.approx(0.020),
            "predicted_tokens_per_s": pytest.approx(450),
            "measured_tokens_per_s": pytest.approx(400),
        },
        "by_bucket": [
            {"bucket": 8, "rounds": 1, "batch_tokens": 7, "predicted_step_s": 0.008, "measured_step_s": 0.005},
            {"bucket": 16, "rounds": 2, "batch_tokens": 20, "predicted_step_s": 0.008, "measured_step_s": 0.009},
        ],
    }


def test_totals_without_a_plan_have_measured_times_alone():
    totals = RoundTotals()
    totals.add(UNPLANNED)
    found = totals.to_dict()
    assert found["plan"] is None
    assert found["by_bucket"] == [
        {"bucket": 16, "rounds": 1, "batch_tokens": 10, "predicted_step_s": None, "measured_step_s": 0.009}
    ]
