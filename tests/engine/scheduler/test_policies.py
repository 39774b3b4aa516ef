"""Policies on small views, the authors' threshold runs, and the spellings that are refused."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from dspark.engine.errors import UsageError
from dspark.engine.scheduler.policies import (
    Fixed,
    NoDraft,
    ScheduleView,
    Threshold,
    parse_policy,
)

FIXTURES = Path(__file__).parents[2] / "fixtures"


def _view(confidence: list[list[float]], caps: list[int], temperatures: list[float] | None = None) -> ScheduleView:
    probs = np.array(confidence)
    return ScheduleView(
        caps=np.array(caps),
        confidence_logits=np.log(probs / (1 - probs)),
        temperatures=np.ones(probs.shape[1]) if temperatures is None else np.array(temperatures),
    )


CONFIDENCE = [[0.9, 0.8, 0.7, 0.95], [0.6, 0.99, 0.4, 0.99], [0.3, 0.99, 0.99, 0.99]]


@pytest.mark.parametrize(
    ("text", "lengths"),
    [
        ("none", [0, 0, 0]),
        ("fixed:1", [1, 1, 1]),
        ("fixed:4", [4, 4, 4]),
        ("threshold:0.5", [3, 2, 0]),
        ("threshold:0.7", [2, 0, 0]),
        ("threshold:0.001", [4, 4, 4]),
        ("threshold:1", [0, 0, 0]),
        ("threshold-position:0.5", [4, 2, 0]),
        ("threshold-position:0.75", [2, 0, 0]),
        ("threshold-position:1e-9", [4, 4, 4]),
    ],
)
def test_lengths(text: str, lengths: list[int]) -> None:
    actual = parse_policy(text, 4).lengths(_view(CONFIDENCE, [9, 9, 9]))
    assert actual.tolist() == lengths and actual.dtype == np.int64


@pytest.mark.parametrize("text", ["none", "fixed:2", "threshold:0.5", "threshold-position:0.5"])
def test_no_requests(text: str) -> None:
    empty = ScheduleView(np.zeros(0, np.int64), np.zeros((0, 4)), np.ones(4))
    assert parse_policy(text, 4).lengths(empty).shape == (0,)


def test_temperatures_calibrate_the_confidence() -> None:
    # Twice the temperature halves the logit: .8 (logit 1.386) becomes .667.
    assert Threshold(0.7).lengths(_view([[0.8]], [1])).tolist() == [1]
    assert Threshold(0.7).lengths(_view([[0.8]], [1], [2.0])).tolist() == [0]


def test_missing_confidence_verifies_nothing() -> None:
    view = ScheduleView(np.array([2]), np.array([[np.nan, 9.0]]), np.ones(2))
    assert Threshold(0.5).lengths(view).tolist() == [0]
    assert Threshold(0.5, per_position=True).lengths(view).tolist() == [0]


@pytest.mark.parametrize("fixture", ["dspark_vanilla", "dspark_rnn"])
def test_reproduces_the_authors_per_position_threshold(fixture: str) -> None:
    runs = json.loads((FIXTURES / fixture / "expected.json").read_text())["threshold_runs"]
    seen = 0
    for run in runs:
        policy = Threshold(run["confidence_threshold"], per_position=True)
        for prompt in run["prompts"]:
            for expected in prompt["rounds"]:
                logits = np.array([expected["confidence_logits_full"]])
                view = ScheduleView(np.array([logits.shape[1]]), logits, np.ones(logits.shape[1]))
                assert policy.lengths(view).tolist() == [expected["draft_token_count"]]
                seen += 1
    assert seen > 20


def test_what_each_policy_drafts() -> None:
    assert not NoDraft().drafts and NoDraft().steps(7) == 0
    assert Fixed(3).drafts and Fixed(3).steps(7) == 3
    assert Threshold(0.5).drafts and Threshold(0.5).steps(7) == 7


def test_parse() -> None:
    assert parse_policy("none", 0) == NoDraft()
    assert parse_policy("fixed:7", 7) == Fixed(7)
    assert parse_policy("threshold:.25", 7) == Threshold(0.25)
    assert parse_policy("threshold-position:1.0", 7) == Threshold(1.0, per_position=True)


@pytest.mark.parametrize(
    "text",
    [
        *("", "None", "none:", "none:1", "fixed", "fixed:", "fixed:0", "fixed:-1", "fixed:8", "fixed:1.0", "fixed: 3"),
        *("fixed:1_0", "fixed:three", "fixed:\u0663", "fixed:99999999999999999999", "fixed:3:4", "greedy", "fixed :3"),
        *("threshold", "threshold:", "threshold:0", "threshold:0.0", "threshold:1.01", "threshold:-0.5"),
        *("threshold:nan", "threshold:inf", "threshold:0_1", "threshold: 0.5", "threshold:1e-999", "threshold:half"),
        *("threshold-position:", "threshold-position:2", "threshold-position:NaN", "x" * 500),
    ],
)
def test_refuses_with_a_remedy(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_policy(text, 7)
    assert caught.value.remedy and len(str(caught.value)) < 200


def test_a_length_past_the_block_names_both_numbers() -> None:
    with pytest.raises(UsageError, match=r"8 draft tokens.* 7 at a time"):
        parse_policy("fixed:8", 7)


def test_importing_the_scheduler_loads_no_torch() -> None:
    code = "import sys, dspark.engine.scheduler.replay, dspark.engine.stopping; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
