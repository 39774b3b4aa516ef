"""Survival against the product of its definition."""

import numpy as np
from scipy.special import expit

from dspark.engine.scheduler.survival import log_confidence, log_survival


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
