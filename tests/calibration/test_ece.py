"""ECE against the authors' numbers, netcal's, exact enumeration and scikit-learn's calibration curve."""

from __future__ import annotations

import itertools
import json
import warnings
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import load_file
from sklearn.calibration import calibration_curve

from dspark.calibration import (
    CalibrationError,
    ece_null,
    expected_calibration_error,
    make_traces,
    measure,
    reliability_bins,
    survival,
)

FIXTURES = Path(__file__).parents[1] / "fixtures"


@pytest.fixture(scope="module", params=["dspark_vanilla", "dspark_rnn"])
def peer(request: pytest.FixtureRequest) -> tuple[dict, np.ndarray, np.ndarray]:
    """The authors' confidence numbers, and the logits [N, G] and accepted lengths [N] that they come from."""
    folder = FIXTURES / request.param
    expected = json.loads((folder / "expected.json").read_text(encoding="utf-8"))
    tensors = load_file(folder / "expected.safetensors")
    logits, accepted = [], []
    for i, prompt in enumerate(expected["prompts"]):
        for j, decoded in enumerate(prompt["rounds"]):
            logits.append(tensors[f"p{i}.r{j}.confidence_logits"])
            accepted.append(sum(decoded["accept_prefix_mask"]))
    return expected["confidence_row"], np.stack(logits), np.array(accepted)


def test_equals_the_authors_numbers(peer: tuple[dict, np.ndarray, np.ndarray]) -> None:
    row, logits, accepted = peer
    traces = make_traces(request=np.arange(len(logits)), accepted=accepted, confidence_logits=logits)
    for ours, theirs in zip(
        measure(traces, [1.0] * traces.gamma, rng=np.random.default_rng(0)), row["per_position"], strict=True
    ):
        assert ours.rounds == theirs["total_weight"]
        assert ours.before.ece == pytest.approx(theirs["ece"], abs=1e-6)
        assert ours.before.brier == pytest.approx(theirs["brier"], abs=1e-6)
        # Theirs is of scores sorted into a histogram, where two rows of one bin count as a tie.
        assert ours.before.auc == pytest.approx(theirs["auc"], abs=3e-3)
        assert ours.before.mean_prediction == pytest.approx(theirs["pred_mean"], abs=1e-6)
        assert ours.survived.rate == pytest.approx(theirs["target_mean"], abs=1e-12)


def test_bins_equal_the_authors_bins(peer: tuple[dict, np.ndarray, np.ndarray]) -> None:
    row, logits, accepted = peer
    probability = survival(logits, np.ones(logits.shape[1]))
    for k, theirs in enumerate(row["per_position"]):
        bins = reliability_bins(probability[:, k], accepted > k)
        used = {i for i, n in enumerate(bins.count) if n}
        assert used == {b["bin"] for b in theirs["reliability"]}
        for b in theirs["reliability"]:
            assert bins.count[b["bin"]] == b["weight"]
            assert bins.positives[b["bin"]] == pytest.approx(b["avg_target"] * b["weight"])
            assert bins.mean_prediction[b["bin"]] == pytest.approx(b["avg_pred"], abs=1e-6)


@pytest.mark.parametrize("bins", [7, 10, 20])
def test_equals_netcals_numbers(
    peer: tuple[dict, np.ndarray, np.ndarray], request: pytest.FixtureRequest, bins: int
) -> None:
    _, logits, accepted = peer
    name = request.node.callspec.params["peer"]
    theirs = json.loads((FIXTURES / "netcal_ece.json").read_text(encoding="utf-8"))["ece"][name][str(bins)]
    probability = survival(logits, np.ones(logits.shape[1]))
    for k, ece in enumerate(theirs):
        ours = expected_calibration_error(probability[:, k], accepted > k, bins=bins)
        assert ours == pytest.approx(ece, abs=1e-12)


@pytest.mark.parametrize("bins", [1, 7, 20])
def test_agrees_with_sklearn_away_from_edges(bins: int) -> None:
    rng = np.random.default_rng(bins)
    probability = rng.random(3000)
    label = rng.random(3000) < probability**2
    share, predicted = calibration_curve(label, probability, n_bins=bins)
    count = np.histogram(probability, bins=bins, range=(0, 1))[0]
    expected = np.sum(np.abs(share - predicted) * count[count > 0]) / 3000
    assert expected_calibration_error(probability, label, bins=bins) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize(
    ("probability", "index"),
    [(0.0, 0), (0.25, 1), (0.5, 2), (0.75, 3), (1.0, 3), (np.nextafter(0.25, 0), 0), (np.nextafter(1.0, 0), 3)],
    ids=str,
)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_edges_belong_to_the_bin_above_and_one_to_the_last(probability: float, index: int, dtype: type) -> None:
    if dtype is np.float32 and probability not in (0.0, 0.25, 0.5, 0.75, 1.0):
        probability = float(np.nextafter(np.float32(round(probability, 2)), np.float32(0)))
    bins = reliability_bins(np.array([probability], dtype=dtype), [1], bins=4)
    assert [i for i, n in enumerate(bins.count) if n] == [index]


@pytest.mark.parametrize(
    ("probability", "label", "ece"),
    [
        ([0.0, 1.0], [0, 1], 0.0),
        ([0.0, 1.0], [1, 0], 1.0),
        ([1.0, 1.0, 1.0, 1.0], [1, 1, 1, 0], 0.25),
        ([0.3], [1], 0.7),
    ],
    ids=["certain and right", "certain and wrong", "once wrong", "one row"],
)
def test_small_cases(probability: list[float], label: list[int], ece: float) -> None:
    assert expected_calibration_error(probability, label) == pytest.approx(ece, abs=1e-12)


def test_no_rows_have_no_ece() -> None:
    assert expected_calibration_error([], []) is None
    assert ece_null([], rng=np.random.default_rng(0)) is None


@pytest.mark.parametrize(
    ("probability", "label"),
    [([np.nan], [1]), ([1.1], [1]), ([-0.1], [0]), ([0.5], [2]), ([0.5], [np.nan]), ([0.5, 0.5], [1])],
    ids=["NaN", "above 1", "below 0", "label 2", "label NaN", "lengths"],
)
def test_refuses_what_is_no_probability_or_label(probability: list[float], label: list[float]) -> None:
    with pytest.raises(CalibrationError) as caught:
        expected_calibration_error(probability, label)
    assert caught.value.remedy


def test_null_of_few_rows_equals_enumeration() -> None:
    probability = np.array([0.1, 0.12, 0.55, 0.9, 0.93, 1.0])
    total = 0.0
    for labels in itertools.product([0, 1], repeat=6):
        weight = np.prod(np.where(labels, probability, 1 - probability))
        total += weight * (expected_calibration_error(probability, labels) or 0.0)
    null = ece_null(probability, rng=np.random.default_rng(0), draws=20_000)
    assert null is not None
    assert null.mean == pytest.approx(total, abs=0.003)


@pytest.mark.parametrize("rounds", [1500, 4000, 20_000])
def test_null_equals_redrawing_row_by_row(rounds: int) -> None:
    """Large samples are redrawn cell by cell; that must look like drawing every row."""
    rng = np.random.default_rng(1)
    probability = survival(rng.normal(1, 1.5, size=(rounds, 3)), np.ones(3))[:, 2]
    drawn = [expected_calibration_error(probability, rng.random(rounds) < probability) for _ in range(300)]
    null = ece_null(probability, rng=rng, draws=1000)
    assert null is not None
    assert null.mean == pytest.approx(np.mean(drawn), rel=0.05)
    assert null.high == pytest.approx(np.quantile(drawn, 0.95), rel=0.07)


def test_certain_predictions_have_a_null_of_zero() -> None:
    null = ece_null(np.array([0.0, 1.0, 1.0]), rng=np.random.default_rng(0))
    assert null is not None
    assert (null.mean, null.high) == (0.0, 0.0)


@settings(max_examples=60, deadline=None)
@given(
    rows=st.lists(st.tuples(st.floats(0, 1), st.booleans()), min_size=1, max_size=60),
    bins=st.integers(1, 40),
)
def test_ece_is_in_range_and_ignores_order(rows: list[tuple[float, bool]], bins: int) -> None:
    probability, label = zip(*rows, strict=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ece = expected_calibration_error(probability, label, bins=bins)
        assert ece is not None and 0 <= ece <= 1
        assert expected_calibration_error(probability[::-1], label[::-1], bins=bins) == pytest.approx(ece, abs=1e-9)
