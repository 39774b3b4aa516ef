"""Is the confidence head worth having? Against two numbers that every drafter gives away, and against the truth."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dspark.calibration import PredictionMetrics, Traces, confidence, prediction_metrics

HEAD, CALIBRATED, ORACLE = "head", "head_calibrated", "oracle_acceptance"

FEWEST_OUTCOMES = 10

# What each predictor is called on the page.
LABELS = {
    HEAD: "confidence head, T = 1",
    CALIBRATED: "confidence head, calibrated",
    "draft_max_probability": "free: max q",
    "draft_margin": "free: top-2 margin",
    ORACLE: "oracle: 1 - ½‖p - q‖₁",
}


@dataclass(frozen=True, slots=True)
class PositionScore:
    """One predictor of acceptance at one position, on the rounds that reached it; None where it is not defined."""

    position: int
    rounds: int
    accepted: int
    auc: float | None
    ece: float | None
    ece_null_high: float | None

    @property
    def telling(self) -> bool:
        """Were enough of either outcome seen for the numbers to say something?"""
        return min(self.accepted, self.rounds - self.accepted) >= FEWEST_OUTCOMES


@dataclass(frozen=True, slots=True)
class SignalScores:
    """One predictor at all positions, and on all of them together."""

    name: str
    positions: tuple[PositionScore, ...]  # [G]
    pooled_auc: float | None
    pooled_ece: float | None

    @property
    def label(self) -> str:
        """What figures and tables call the signal."""
        return LABELS[self.name]


def audit(traces: Traces, temperatures: NDArray[np.float64] | None, *, rng: np.random.Generator) -> list[SignalScores]:
    """AUC and ECE of the head (and calibrated, with `temperatures` [G]), the free signals and the oracle, if recorded.

    All are scored on the same drafts: those for which every one of them is known. A signal that is known for none of
    the observed drafts counts as not recorded.
    """
    logits = traces.confidence_logits
    signals = {HEAD: confidence(logits, 1.0)}
    if temperatures is not None:
        signals[CALIBRATED] = confidence(logits, temperatures)
    position = np.arange(1, traces.gamma + 1)
    observed = traces.observed[:, None] >= position  # [N, G]
    for name in LABELS:
        if name in traces.signals and np.isfinite(traces.signals[name][observed]).any():
            signals[name] = traces.signals[name].astype(np.float64)
    observed &= np.all([np.isfinite(values) for values in signals.values()], axis=0)
    accepted = traces.accepted[:, None] >= position
    return [_scores(name, values, observed, accepted, rng) for name, values in signals.items()]


def _scores(
    name: str,
    values: NDArray[np.float64],
    observed: NDArray[np.bool_],
    accepted: NDArray[np.bool_],
    rng: np.random.Generator,
) -> SignalScores:
    positions = []
    for k in range(values.shape[1]):
        labels = accepted[observed[:, k], k]
        metrics = _metrics(values[observed[:, k], k], labels, rng)
        null = metrics.ece_null
        positions.append(
            PositionScore(
                position=k + 1,
                rounds=labels.size,
                accepted=int(labels.sum()),
                auc=metrics.auc,
                ece=metrics.ece,
                ece_null_high=None if null is None else null.high,
            )
        )
    pooled = _metrics(values[observed], accepted[observed], rng)
    return SignalScores(name, tuple(positions), pooled.auc, pooled.ece)


def _metrics(values: NDArray[np.float64], labels: NDArray[np.bool_], rng: np.random.Generator) -> PredictionMetrics:
    # fp32 sums of probabilities may end a rounding above 1.
    return prediction_metrics(np.clip(values, 0.0, 1.0), labels, rng=rng)
