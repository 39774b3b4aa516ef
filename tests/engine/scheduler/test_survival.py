"""Survival against the product of its definition."""

from collections.abc import Callable

import numpy as np
import pytest
from fixed_point import device_hazards
from scipy.special import expit

from dspark.engine.scheduler.survival import (
    HAZARD_LIMIT,
    HAZARD_UNIT,
    hazards,
    log_confidence,
    log_survival,
    survival,
)

EITHER = pytest.mark.parametrize("hazards", [hazards, device_hazards], ids=["of-the-host", "of-any-device"])


def test_survival_is_the_running_product_of_calibrated_confidence() -> None:
    logits = np.random.default_rng(0).normal(0, 2, (50, 7)).astype(np.float32)
    temperatures = np.array([0.5, 0.8, 1.0, 1.3, 2.0, 3.0, 0.9])
    confidence = expit(logits / temperatures)
    np.testing.assert_allclose(np.exp(log_confidence(logits, temperatures)), confidence, rtol=1e-12)
    np.testing.assert_allclose(np.exp(log_survival(logits, temperatures)), confidence.cumprod(axis=1), rtol=1e-12)


def test_fewer_positions_than_temperatures() -> None:
    logits = np.ones((2, 3))
    np.testing.assert_array_equal(log_survival(logits, np.ones(7)), log_survival(logits, np.ones(3)))


def test_extreme_logits_neither_overflow_nor_saturate() -> None:
    logits = np.array([[1e4, 40.0, -40.0, -1e4], [np.inf, 0.0, -np.inf, 0.0]])
    with np.errstate(all="raise"):
        survival = log_survival(logits, np.ones(4))
    np.testing.assert_allclose(survival[0], [0.0, -np.exp(-40), -40.0, -10040.0], rtol=1e-12)
    assert survival[1, 0] == 0 and survival[1, 2] == survival[1, 3] == -np.inf


def test_survival_never_rises() -> None:
    logits = np.random.default_rng(1).normal(8, 8, (1000, 9))
    assert (np.diff(log_survival(logits, np.ones(9)), axis=1) <= 0).all()


@EITHER
def test_hazards_are_log_survival_in_fixed_point(hazards: Callable[..., np.ndarray]) -> None:
    logits = np.random.default_rng(1).normal(1, 4, (300, 16)).astype(np.float32)
    temperatures = np.random.default_rng(2).uniform(0.3, 3, 16)
    exact = -np.log(expit(logits.astype(np.float64) / temperatures)).cumsum(axis=1)
    actual = hazards(logits, temperatures)
    # Half a unit of rounding a position, and fp32 arithmetic on confidences down to e^-40.
    np.testing.assert_allclose(actual * HAZARD_UNIT, exact, atol=16 * HAZARD_UNIT, rtol=1e-6)
    assert actual.dtype == np.int32 and (np.diff(actual, axis=1) >= 0).all()
    np.testing.assert_allclose(survival(actual), np.exp(-exact), atol=2e-5)


@EITHER
def test_hazards_of_extreme_logits(hazards: Callable[..., np.ndarray]) -> None:
    logits = np.array([[np.inf, 0.0], [-np.inf, 9.0], [np.nan, 9.0], [1e30, -1e30], [9.0, np.nan]])
    values = hazards(logits, np.array([1.0, 1e-30]))
    assert values[:, 0].tolist() == [0, HAZARD_LIMIT, HAZARD_LIMIT, 0, values[4, 0]]
    assert values[1:, 1].tolist() == [HAZARD_LIMIT] * 4
    assert survival(values)[1:, 1].tolist() == [0.0] * 4 and survival(values)[0, 0] == 1.0
    assert hazards(np.full((1, 31), -1e9), np.ones(31))[0, -1] == HAZARD_LIMIT


@EITHER
def test_hazards_of_no_positions(hazards: Callable[..., np.ndarray]) -> None:
    assert hazards(np.zeros((3, 0)), np.ones(7)).shape == (3, 0)


def test_the_hosts_hazards_are_rounded_once() -> None:
    logits = np.random.default_rng(3).normal(2, 2, (300, 7)).astype(np.float32)
    exact = -np.log(expit(logits.astype(np.float64))).cumsum(axis=1)
    np.testing.assert_allclose(hazards(logits, np.ones(7)) * HAZARD_UNIT, exact, atol=0.5001 * HAZARD_UNIT, rtol=0)
