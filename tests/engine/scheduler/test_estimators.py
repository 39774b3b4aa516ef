"""Running corrections of predicted times: what they find, and what they do not let themselves be led astray by."""

from __future__ import annotations

import numpy as np
import pytest

from dspark.engine.scheduler.estimators import RatioEstimator

BUCKETS = 6


def fed(truth: np.ndarray, order: np.ndarray, *, noise: float = 0.03, seed: int = 0) -> RatioEstimator:
    """Steps of 1 ms that take truth[bucket] ms, in the order given."""
    rng = np.random.default_rng(seed)
    estimator = RatioEstimator(BUCKETS)
    for bucket in order:
        measured = 1e-3 * truth[bucket] * np.exp(noise * rng.standard_normal())
        estimator.observe(int(bucket), predicted_s=1e-3, measured_s=measured)
    return estimator


def test_without_measurements_predictions_stand() -> None:
    assert RatioEstimator(BUCKETS).ratios().tolist() == [1.0] * BUCKETS


@pytest.mark.parametrize("ratio", [0.6, 0.9, 1.0, 1.2, 2.5])
def test_errors_in_both_directions_are_found(ratio: float) -> None:
    truth = np.full(BUCKETS, ratio)
    estimator = fed(truth, np.tile([1, 3, 4], 200))
    np.testing.assert_allclose(estimator.ratios()[[1, 3, 4]], ratio, rtol=0.02)
    # Buckets that never ran follow the others.
    np.testing.assert_allclose(estimator.ratios()[[0, 2, 5]], ratio, rtol=0.02)


def test_each_bucket_has_its_own_correction_once_it_has_samples() -> None:
    truth = np.array([1.0, 0.8, 1.3, 1.0, 1.1, 0.9])
    estimator = fed(truth, np.tile(np.arange(BUCKETS), 150))
    np.testing.assert_allclose(estimator.ratios(), truth, rtol=0.04)


def test_a_single_sample_moves_its_bucket_less_than_many() -> None:
    base = fed(np.ones(BUCKETS), np.zeros(200, dtype=int))
    base.observe(2, predicted_s=1e-3, measured_s=1.3e-3)
    once = base.ratios()[2]
    for _ in range(60):
        base.observe(2, predicted_s=1e-3, measured_s=1.3e-3)
    assert 1.0 < once < 1.1 < base.ratios()[2]


@pytest.mark.parametrize("stall", [10.0, 1e4])
def test_a_stall_does_not_poison_an_estimate(stall: float) -> None:
    clean = fed(np.ones(BUCKETS), np.zeros(200, dtype=int))
    before = clean.ratios()
    clean.observe(0, predicted_s=1e-3, measured_s=stall * 1e-3)
    np.testing.assert_allclose(clean.ratios(), before, rtol=0.01)


def test_a_stall_of_the_very_first_step_is_survived() -> None:
    estimator = RatioEstimator(BUCKETS)
    estimator.observe(0, predicted_s=1e-3, measured_s=1.0)
    assert (estimator.ratios() < 1.1).all()


@pytest.mark.parametrize("share", [0.05, 0.1])
def test_frequent_stalls_move_an_estimate_by_little(share: float) -> None:
    rng = np.random.default_rng(3)
    estimator = RatioEstimator(BUCKETS)
    for _ in range(2000):
        measured = 1e-3 * np.exp(0.02 * rng.standard_normal()) * (30 if rng.random() < share else 1)
        estimator.observe(1, predicted_s=1e-3, measured_s=measured)
    # Their mean would be off by 145 % and more.
    assert 0.98 < estimator.ratios()[1] < 1.06


def test_a_lasting_change_is_followed() -> None:
    estimator = fed(np.ones(BUCKETS), np.zeros(500, dtype=int))
    for _ in range(300):
        estimator.observe(0, predicted_s=1e-3, measured_s=1.8e-3)
    np.testing.assert_allclose(estimator.ratios()[0], 1.8, rtol=0.03)


def test_old_samples_of_a_bucket_lose_their_weight() -> None:
    truth = np.array([1.5, 1.0, 1.0, 1.0, 1.0, 1.0])
    estimator = fed(truth, np.repeat([0, 1], [100, 100]))
    fresh = estimator.samples()[0]
    for _ in range(40_000):
        estimator.observe(1, predicted_s=1e-3, measured_s=1e-3)
    assert estimator.samples()[0] < 0.01 * fresh
    np.testing.assert_allclose(estimator.ratios()[0], 1.0, rtol=0.01)


@pytest.mark.parametrize("measured", [0.0, -1.0, float("nan"), float("inf")])
def test_times_that_are_none_are_left_out(measured: float) -> None:
    estimator = RatioEstimator(BUCKETS)
    estimator.observe(0, predicted_s=1e-3, measured_s=measured)
    assert estimator.ratios().tolist() == [1.0] * BUCKETS and not estimator.samples().any()


def test_corrections_stay_between_a_quarter_and_four() -> None:
    for ratio, bound in ((1e-6, 0.25), (1e6, 4.0)):
        estimator = fed(np.full(BUCKETS, ratio), np.zeros(3000, dtype=int))
        np.testing.assert_allclose(estimator.ratios()[0], bound, rtol=0.01)
