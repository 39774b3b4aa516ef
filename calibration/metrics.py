"""How good the confidences of every position are on rounds that they were not fitted on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dspark.calibration.confidence import survival
from dspark.calibration.ece import DEFAULT_BINS, EceNull, ReliabilityBins, ece_null, reliability_bins
from dspark.calibration.traces import Traces


@dataclass(frozen=True, slots=True)
class Proportion:
    """A count of a count with its 95 % Wilson interval; None without trials."""

    successes: int
    trials: int
    rate: float | None
    low: float | None
    high: float | None

    @classmethod
    def of(cls, successes: int, trials: int) -> Proportion:
        """So many successes of so many trials, with their Wilson interval; None for all of it without trials."""
        if trials == 0:
            return cls(0, 0, None, None, None)
        low, high = wilson_interval(np.array([successes]), np.array([trials]))
        return cls(successes, trials, successes / trials, float(low[0]), float(high[0]))


@dataclass(frozen=True, slots=True)
class PredictionMetrics:
    """What one set of predictions scores on one set of labels; None where it is not defined."""

    ece: float | None
    ece_null: EceNull | None
    nll: float | None
    brier: float | None
    auc: float | None
    mean_prediction: float | None
    reliability: ReliabilityBins | None

    @property
    def calibrated(self) -> bool | None:
        """ECE is no larger than 95 % of perfectly calibrated samples of this size have."""
        if self.ece is None or self.ece_null is None:
            return None
        # Predictions that are all exactly 0 or 1 leave nothing to redraw: both sides are 0 up to rounding.
        return self.ece <= self.ece_null.high + 1e-12


@dataclass(frozen=True, slots=True)
class PositionMetrics:
    """Survival a_k of position k before and after calibration, on the rounds where its outcome is known."""

    position: int  # from 1
    rounds: int
    survived: Proportion
    accepted: Proportion  # of the rounds that reached the position
    before: PredictionMetrics
    after: PredictionMetrics

    @property
    def worse(self) -> bool:
        """ECE rose by more than what chance explains, to a value that chance does not explain."""
        before, after = self.before, self.after
        if before.ece is None or after.ece is None or after.ece_null is None or after.calibrated:
            return False
        # Of few rounds the null's 95 % may lie below its mean.
        return after.ece - before.ece > max(after.ece_null.high - after.ece_null.mean, 0.0)


def measure(
    traces: Traces, temperatures: Sequence[float], *, rng: np.random.Generator, bins: int = DEFAULT_BINS
) -> list[PositionMetrics]:
    """Metrics of every position at temperature 1 and at `temperatures` [G]."""
    before = survival(traces.confidence_logits, np.ones(traces.gamma))
    after = survival(traces.confidence_logits, temperatures)
    accepted = acceptance_by_position(traces)
    measured = []
    for k in range(1, traces.gamma + 1):
        known, survived = traces.survival_known_at(k)
        labels = survived[known]
        measured.append(
            PositionMetrics(
                position=k,
                rounds=labels.size,
                survived=Proportion.of(int(labels.sum()), labels.size),
                accepted=accepted[k - 1],
                before=prediction_metrics(before[known, k - 1], labels, rng=rng, bins=bins),
                after=prediction_metrics(after[known, k - 1], labels, rng=rng, bins=bins),
            )
        )
    return measured


def acceptance_by_position(traces: Traces) -> list[Proportion]:
    """Conditional acceptance: of the rounds that reached a position, those that accepted it."""
    counts = [traces.observed_at(k) for k in range(1, traces.gamma + 1)]
    return [Proportion.of(int(accepted.sum()), int(observed.sum())) for observed, accepted in counts]


def prediction_metrics(
    probability: NDArray[np.float64], label: NDArray[np.bool_], *, rng: np.random.Generator, bins: int = DEFAULT_BINS
) -> PredictionMetrics:
    """probability [N], label [N]."""
    from sklearn.metrics import brier_score_loss, log_loss, roc_auc_score

    if label.size == 0:
        return PredictionMetrics(None, None, None, None, None, None, None)
    reliability = reliability_bins(probability, label, bins=bins)
    both = bool(label.any() and not label.all())
    return PredictionMetrics(
        ece=reliability.ece,
        ece_null=ece_null(probability, rng=rng, bins=bins),
        # A prediction of exactly 0 or 1 that fails would cost infinitely much; sklearn clips it to the nearest double.
        nll=float(log_loss(label, probability, labels=[False, True])),
        brier=float(brier_score_loss(label, probability, pos_label=True)),
        auc=float(roc_auc_score(label, probability)) if both else None,
        mean_prediction=float(probability.mean()),
        reliability=reliability,
    )


def wilson_interval(
    successes: NDArray[np.integer], trials: NDArray[np.integer], *, level: float = 0.95
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """successes, trials [n] -> ends of the Wilson intervals [n]; NaN without trials."""
    from scipy.stats import binomtest

    low, high = np.full(len(trials), np.nan), np.full(len(trials), np.nan)
    for i in np.flatnonzero(trials):
        interval = binomtest(int(successes[i]), int(trials[i])).proportion_ci(level, method="wilson")
        low[i], high[i] = interval.low, interval.high
    return low, high
