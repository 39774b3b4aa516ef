"""Scores and intervals against scikit-learn, the textbook formula, and by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
from sklearn.metrics import brier_score_loss, log_loss, roc_auc_score

from dspark.calibration import EceNull, PositionMetrics, PredictionMetrics, Proportion, measure, survival
from dspark.calibration.confidence import confidence


@pytest.mark.parametrize(("hits", "trials"), [(0, 10), (3, 10), (10, 10), (1, 1), (500, 1000)])
def test_wilson_interval_is_the_textbook_formula(hits: int, trials: int) -> None:
    z, p = 1.959963984540054, hits / trials
    centre = (p + z * z / (2 * trials)) / (1 + z * z / trials)
    half = z / (1 + z * z / trials) * math.sqrt(p * (1 - p) / trials + z * z / (4 * trials**2))
    proportion = Proportion.of(hits, trials)
    assert (proportion.low, proportion.high) == pytest.approx((centre - half, centre + half), abs=1e-9)


def test_no_trials_have_no_rate() -> None:
    assert Proportion.of(0, 0) == Proportion(0, 0, None, None, None)


def test_measure_scores_survival_on_known_rounds(simulate) -> None:
    traces = simulate(500, (0.5, 2.0))
    for metric in measure(traces, (0.5, 2.0), rng=np.random.default_rng(0)):
        known, survived = traces.survival_known_at(metric.position)
        predicted = survival(traces.confidence_logits, (0.5, 2.0))[known, metric.position - 1]
        assert metric.after.auc == pytest.approx(roc_auc_score(survived[known], predicted))
        assert metric.after.nll == pytest.approx(log_loss(survived[known], predicted))
        assert metric.after.brier == pytest.approx(brier_score_loss(survived[known], predicted))
        assert metric.survived.successes == survived[known].sum()


def test_temperature_keeps_the_order_at_one_position_only(simulate) -> None:
    first, second = measure(simulate(3000, (0.4, 3.0)), (0.4, 3.0), rng=np.random.default_rng(0))
    assert first.before.auc == pytest.approx(first.after.auc, abs=1e-12)
    assert second.before.auc != pytest.approx(second.after.auc, abs=1e-4)


@pytest.mark.parametrize(
    ("before", "after", "worse"),
    [(0.02, 0.05, True), (0.049, 0.05, False), (0.05, 0.02, False), (0.005, 0.011, False)],
    ids=["worse", "by chance", "better", "still inside the null"],
)
def test_worse_means_beyond_chance(before: float, after: float, worse: bool) -> None:
    def scores(ece: float) -> PredictionMetrics:
        return PredictionMetrics(ece, EceNull(0.01, 0.012), 0.5, 0.1, 0.8, 0.5, None)

    share = Proportion.of(1, 2)
    assert PositionMetrics(1, 2, share, share, scores(before), scores(after)).worse is worse


def test_what_did_not_change_is_no_worse_where_few_rounds_put_the_nulls_95_percent_below_its_mean() -> None:
    same = PredictionMetrics(0.32, EceNull(0.0147, 0.005), 0.5, 0.1, 0.8, 0.5, None)
    share = Proportion.of(1, 2)
    assert not PositionMetrics(1, 2, share, share, same, same).worse


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("temperature", [0.1, 1.0, 10.0])
def test_confidence_is_a_probability_at_every_logit(temperature: float) -> None:
    logits = np.array([[-3e38, -800, -1, 0, 1, 30, 800, 3e38]], dtype=np.float32)
    c = confidence(logits, temperature)
    assert ((c >= 0) & (c <= 1)).all()
    assert (np.diff(c) >= 0).all()
    assert c[0, 3] == 0.5
    assert (c[0, [0, -1]] == [0, 1]).all() or c[0, 0] < 1e-300
    a = survival(logits, np.full(8, temperature))
    assert (np.diff(a, axis=1) <= 0).all()
