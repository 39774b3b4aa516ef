"""What a calibration is worth, in words."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dspark.calibration.fit import FEWEST_OBSERVED, FEWEST_OUTCOMES, PositionFit
from dspark.calibration.metrics import PositionMetrics
from dspark.calibration.sampling import sampling_settings
from dspark.calibration.search import TemperatureGrid
from dspark.calibration.traces import Traces

# A perfectly calibrated sample of this size still shows an ECE of about .03.
FEW_ROUNDS = 2000

# What a fit takes, a measurement takes too.
FEWEST_MEASURED = FEWEST_OBSERVED

_LARGE_SHARE = 0.02
_AUC_LOSS = 0.005


def verdict(fits: Sequence[PositionFit], metrics: Sequence[PositionMetrics], *, held_out: bool) -> str:
    """One sentence: did calibration help?"""
    if not any(fit.fitted for fit in fits):
        return "Too little was observed to calibrate any position: every temperature stays 1."
    known = _known(metrics)
    if not known:
        return "No round is left to measure the temperatures on."
    measured = _measured(metrics)
    if not measured:
        return (
            f"Too few rounds to tell whether calibration helps: {max(m.rounds for m in known)} at a position to "
            f"measure on, and it takes {FEWEST_MEASURED}."
        )
    mean = _MeanEce.of(measured)
    inside = sum(bool(m.after.calibrated) for m in measured)
    change = (
        f"mean {'held-out' if held_out else 'fitted'} ECE {mean.before:.4f} before and {mean.after:.4f} after, against "
        f"{mean.perfect:.4f} (95 %: {mean.perfect_high:.4f}) for perfect calibration; {inside} of {len(measured)} "
        "positions are inside their null"
    )
    if mean.before <= mean.before_high and abs(mean.before - mean.after) <= mean.noise:
        most = max(m.rounds for m in measured)
        if most < FEW_ROUNDS:
            return f"{most} rounds are too few to tell whether calibration was needed or helped: {change}."
        return f"The confidences were calibrated already, and calibration changes nothing beyond noise: {change}."
    if mean.better:
        return f"Calibration helped: {change}."
    if mean.worse:
        return f"Calibration made the confidences worse, use temperatures of 1: {change}."
    return f"Calibration made no difference beyond noise: {change}."


def made_worse(metrics: Sequence[PositionMetrics]) -> bool:
    """Does the verdict on these metrics say that calibration did harm?"""
    measured = _measured(metrics)
    return bool(measured) and _MeanEce.of(measured).worse


def warnings(
    fit_traces: Traces,
    held_out: Traces,
    fits: Sequence[PositionFit],
    metrics: Sequence[PositionMetrics],
    grid: TemperatureGrid,
) -> list[str]:
    """What a reader of the temperatures should know, one sentence each."""
    return [
        *_about_size(fit_traces, held_out),
        *_about_selection(fit_traces),
        *_about_fits(fits, grid),
        *_about_metrics(metrics),
    ]


def _about_size(fit_traces: Traces, held_out: Traces) -> list[str]:
    found = []
    if len(fit_traces) < FEW_ROUNDS:
        found.append(f"Only {len(fit_traces)} rounds to fit on: temperatures from fewer than {FEW_ROUNDS} are rough.")
    if not len(held_out):
        found.append("Nothing was held out: the metrics are of the rounds fitted on, and better than they should be.")
    elif len(held_out) < FEW_ROUNDS:
        found.append(
            f"Only {len(held_out)} rounds were held out: below {FEW_ROUNDS}, chance alone gives an ECE of .03 and more."
        )
    if not fit_traces.requests_known:
        found.append(
            "The traces name no requests: runs of neighbouring rows were held out together, which is a weaker split."
        )
    return found


def _about_selection(traces: Traces) -> list[str]:
    found = []
    ended = float(np.mean((traces.accepted == traces.observed) & (traces.observed < traces.verified)))
    if ended > _LARGE_SHARE:
        found.append(
            f"A stop or limit ended {ended:.0%} of the rounds inside the block; survival behind it is not known and "
            "left out, which favours rejections. Record with stop tokens ignored."
        )
    # `fixed:K` is cut short by token limits alone, which know nothing of the block.
    fixed = np.array([name.startswith("fixed:") for name in traces.policy.names], dtype=bool)
    trimmed = float(np.mean((traces.verified < traces.drafted) & ~fixed[traces.policy.codes]))
    if trimmed > _LARGE_SHARE:
        found.append(
            f"{trimmed:.0%} of the rounds were verified short of what was drafted: deep positions rest on the rounds "
            "that the policy chose."
        )
    settings = sampling_settings(traces)
    if len(settings) > 1:
        found.append(f"The rounds mix {len(settings)} sampling settings: the temperatures are a compromise of them.")
    return found


def _about_fits(fits: Sequence[PositionFit], grid: TemperatureGrid) -> list[str]:
    found = []
    left = [(position, fit) for position, fit in enumerate(fits, start=1) if not fit.fitted]
    if left:
        which = ", ".join(f"{position} ({fit.accepted} of {fit.observed})" for position, fit in left)
        found.append(
            f"Too few rounds reached these positions (accepted of reached); their temperatures were left at 1: {which}."
            f" It takes {FEWEST_OBSERVED} rounds, {FEWEST_OUTCOMES} of either outcome."
        )
    for position, fit in enumerate(fits, start=1):
        if fit.on_edge:
            found.append(
                f"Position {position}: its temperature {fit.temperature:.3g} is at the edge of the grid "
                f"({grid.low:g} to {grid.high:g}); the head hardly tells accepted from rejected there, or the grid "
                "is too narrow."
            )
    return found


def _about_metrics(metrics: Sequence[PositionMetrics]) -> list[str]:
    found = []
    for m in metrics:
        if m.worse:
            found.append(
                f"Position {m.position}: calibration made it worse, ECE {m.before.ece:.4f} before and "
                f"{m.after.ece:.4f} after."
            )
        if m.before.auc is not None and m.after.auc is not None and m.after.auc < m.before.auc - _AUC_LOSS:
            found.append(
                f"Position {m.position}: survival orders the rounds less well than before, AUC {m.before.auc:.4f} "
                f"before and {m.after.auc:.4f} after."
            )
    return found


@dataclass(frozen=True, slots=True)
class _MeanEce:
    """ECE of survival before and after, and of samples that are perfectly calibrated, averaged over positions."""

    before: float
    after: float
    before_high: float  # 95 % of perfect samples of the numbers before
    perfect: float  # of the numbers after
    perfect_high: float

    @classmethod
    def of(cls, measured: Sequence[PositionMetrics]) -> _MeanEce:
        return cls(
            before=float(np.mean([m.before.ece for m in measured])),
            after=float(np.mean([m.after.ece for m in measured])),
            before_high=float(np.mean([m.before.ece_null.high for m in measured if m.before.ece_null])),
            perfect=float(np.mean([m.after.ece_null.mean for m in measured if m.after.ece_null])),
            perfect_high=float(np.mean([m.after.ece_null.high for m in measured if m.after.ece_null])),
        )

    @property
    def noise(self) -> float:
        # Of few rounds the 95 % may lie below the mean.
        return max(self.perfect_high - self.perfect, 0.0)

    @property
    def better(self) -> bool:
        return self.after < self.before - self.noise

    @property
    def worse(self) -> bool:
        return self.after > self.before + self.noise


def _known(metrics: Sequence[PositionMetrics]) -> list[PositionMetrics]:
    return [m for m in metrics if m.before.calibrated is not None and m.after.calibrated is not None]


def _measured(metrics: Sequence[PositionMetrics]) -> list[PositionMetrics]:
    """Positions with rounds enough to have a say."""
    return [m for m in _known(metrics) if m.rounds >= FEWEST_MEASURED]
