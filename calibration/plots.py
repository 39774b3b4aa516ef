"""Drawings of calibration numbers, each into the Axes it is given; nothing global is set."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from dspark.calibration.ece import ReliabilityBins
from dspark.calibration.metrics import Proportion, wilson_interval

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Told apart by the colour-blind, in grey, and on light and dark ground; markers differ as well.
BEFORE = "#d55e00"
AFTER = "#0072b2"
_DIAGONAL = "#808080"


def draw_reliability(
    axes: Axes, bins: ReliabilityBins, *, label: str, color: str = AFTER, marker: str = "o", shift: float = 0.0
) -> None:
    """Share of accepted rounds against mean prediction, one point a non-empty bin, with 95 % Wilson intervals.

    `shift` moves the points sideways, so that the intervals of two diagrams in one Axes do not hide each other.
    """
    used = [i for i, mean in enumerate(bins.mean_prediction) if mean is not None]
    count = np.array(bins.count)[used]
    positives = np.array(bins.positives)[used]
    predicted = np.array([bins.mean_prediction[i] for i in used], dtype=np.float64) + shift
    low, high = wilson_interval(positives, count)
    share = positives / count
    axes.axline((0, 0), (1, 1), color=_DIAGONAL, linewidth=1, linestyle="--", zorder=1)
    axes.errorbar(
        predicted,
        share,
        # Rounding may put an end of the interval just inside the share it belongs to.
        yerr=(np.maximum(share - low, 0), np.maximum(high - share, 0)),
        fmt=marker,
        color=color,
        label=label,
        markersize=4,
        linewidth=1,
        capsize=2,
    )
    axes.set(xlim=(0, 1), ylim=(0, 1), xlabel="predicted survival", ylabel="accepted up to here")


def draw_counts(axes: Axes, bins: ReliabilityBins, *, label: str, color: str = AFTER, filled: bool = True) -> None:
    """How many rounds were predicted in each bin; outlines (`filled` False) leave room for a second histogram."""
    edges = np.linspace(0.0, 1.0, len(bins.count) + 1)
    axes.stairs(bins.count, edges, color=color, label=label, fill=filled, alpha=0.4 if filled else 1.0)
    axes.set(xlim=(0, 1), xlabel="predicted survival", ylabel="rounds")


def draw_acceptance(
    axes: Axes,
    proportions: Sequence[Proportion],
    *,
    label: str,
    color: str = AFTER,
    marker: str = "o",
    linestyle: str = "-",
) -> None:
    """Acceptance against draft position (from 1), with 95 % Wilson intervals; positions never reached are left out."""
    points = [
        (position, p.rate, p.rate - p.low, p.high - p.rate)
        for position, p in enumerate(proportions, start=1)
        if p.rate is not None and p.low is not None and p.high is not None
    ]
    position, rate, below, above = np.array(points, dtype=np.float64).reshape(-1, 4).T
    axes.errorbar(
        position,
        rate,
        yerr=np.maximum((below, above), 0),
        marker=marker,
        linestyle=linestyle,
        color=color,
        label=label,
        markersize=4,
        linewidth=1.2,
        capsize=2,
    )
    axes.set(ylim=(0, 1.02), xlabel="draft position", ylabel="accepted, given that it was reached")
    axes.set_xticks(range(1, len(proportions) + 1))
