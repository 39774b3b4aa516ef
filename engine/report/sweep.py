"""What a threshold on the confidence lets through, and how much of that is accepted."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dspark.calibration import Traces
from dspark.engine.report.rounds import full_blocks
from dspark.engine.scheduler.survival import log_confidence, log_survival

STEPS = 100


@dataclass(frozen=True, slots=True)
class ThresholdSweep:
    """Verified and accepted drafted tokens a round, at each threshold; the rate is None where nothing is verified."""

    policy: str  # `threshold` or `threshold-position`
    thresholds: tuple[float, ...]
    verified: tuple[float, ...]
    accepted: tuple[float, ...]
    acceptance_rate: tuple[float | None, ...]

    @property
    def rejected(self) -> tuple[float, ...]:
        """Verified in vain: the rejected token of a round and those behind it."""
        return tuple(v - a for v, a in zip(self.verified, self.accepted, strict=True))

    def at(self, threshold: float) -> tuple[float, float]:
        """(verified, accepted) at the nearest threshold."""
        i = int(np.abs(np.array(self.thresholds) - threshold).argmin())
        return self.verified[i], self.accepted[i]


def threshold_sweeps(traces: Traces, temperatures: NDArray[np.float64]) -> list[ThresholdSweep]:
    """Both threshold policies from 0 (the whole block) to 1, on the rounds that were verified in full.

    A block lets through the positions before the first whose log falls under the threshold's. With the running minimum
    along the block (survival falls by itself) that is a count, so one sort serves all thresholds.
    """
    full = full_blocks(traces)
    if not len(full):
        return []
    passed = np.arange(traces.gamma) < full.accepted[:, None]  # [N, G]
    survives = log_survival(full.confidence_logits, temperatures)
    confident = np.minimum.accumulate(log_confidence(full.confidence_logits, temperatures), axis=1)
    return [_sweep("threshold", survives, passed), _sweep("threshold-position", confident, passed)]


def _sweep(policy: str, scores: NDArray[np.float64], passed: NDArray[np.bool_]) -> ThresholdSweep:
    thresholds = np.arange(STEPS + 1) / STEPS
    with np.errstate(divide="ignore"):
        limits = np.log(thresholds)
    rounds = len(scores)
    verified, accepted = (
        (part.size - np.searchsorted(np.sort(part), limits, side="left")) / rounds
        for part in (scores.ravel(), scores[passed])
    )
    rates = [float(a / v) if v else None for a, v in zip(accepted, verified, strict=True)]
    return ThresholdSweep(
        policy, tuple(thresholds.tolist()), tuple(verified.tolist()), tuple(accepted.tolist()), tuple(rates)
    )
