"""Counts against probabilities: scipy's test where no outcome is rare, and rare ones put together."""

import numpy as np
import pytest
from scipy.stats import chisquare

from dspark.engine.selftest.goodness import Fit, pearson


def test_common_outcomes_are_tested_as_scipy_does():
    counts, probs = np.array([50, 31, 19]), np.array([0.5, 0.25, 0.25])
    expected = chisquare(counts, probs * 100)
    assert pearson(counts, probs).p_value == pytest.approx(expected.pvalue, rel=1e-12)


def test_rare_outcomes_count_as_one():
    counts = np.array([1, 60, 2, 30, 4, 3])
    probs = np.array([0.02, 0.6, 0.02, 0.32, 0.02, 0.02])
    expected = chisquare([60, 30, 10], [60, 32, 8])
    fit = pearson(counts, probs)
    assert (fit.statistic, fit.freedom) == (pytest.approx(expected.statistic), 2)
    # Too rare even together: they join the rarest of the others.
    assert pearson(np.array([57, 40, 3]), np.array([0.6, 0.36, 0.04])).p_value == pytest.approx(
        chisquare([57, 43], [60, 40]).pvalue
    )


def test_something_impossible_fits_nothing():
    fit = pearson(np.array([99, 1]), np.array([1.0, 0.0]))
    assert fit.p_value == 0
    assert (fit + pearson(np.array([50, 50]), np.array([0.5, 0.5]))).p_value == 0


def test_a_single_outcome_says_nothing():
    assert pearson(np.array([7, 0]), np.array([1.0, 0.0])) == Fit()
    assert Fit().p_value == 1


def test_p_values_of_true_distributions_are_uniform():
    rng = np.random.default_rng(3)
    found = []
    for _ in range(2000):
        probs = rng.dirichlet(np.full(20, 0.4))
        found.append((pearson(rng.multinomial(300, probs), probs) + pearson(rng.multinomial(90, probs), probs)).p_value)
    for share in (0.01, 0.1, 0.5):
        assert np.mean(np.array(found) < share) == pytest.approx(share, abs=4 * np.sqrt(share / 2000))
