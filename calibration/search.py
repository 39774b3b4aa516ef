"""The ECE of one position's survival as a function of that position's temperature, and its minimum."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dspark.calibration.confidence import confidence
from dspark.calibration.ece import bin_index
from dspark.calibration.errors import CalibrationError

# Up to this many rows are looked at one by one; more are first gathered into cells of almost equal rows.
_EXACT_UP_TO = 1 << 16
_PREFIX_CELLS = 128
_LOGIT_CELLS = 512
_CHUNK = 1 << 16

# The parabola goes through where ECE is at most this many times its minimum, within a factor of e.
_WINDOW_RISE = 2.5
_WIDEST_WINDOW = 1.0
_NARROWEST_WINDOW = 0.02
_WINDOW_POINTS = 41
_FEWEST_POINTS = 9

_REFINED_POINTS = 11
_REFINEMENTS = 2


_LOWEST, _HIGHEST = 1e-3, 1e3
_FEWEST, _MOST = 3, 10_000


@dataclass(frozen=True, slots=True)
class TemperatureGrid:
    """Candidates from `low` to `high` at equal ratios; the best one's surroundings are searched more finely.

    Raises:
        CalibrationError: the ends are not in order or not from 1e-3 to 1e3, or points are not 3 to 10000.
    """

    low: float = 0.1
    high: float = 10.0
    points: int = 61

    def __post_init__(self) -> None:
        in_order = _LOWEST <= self.low < self.high <= _HIGHEST
        if not in_order or not _FEWEST <= self.points <= _MOST:
            raise CalibrationError(
                f"a grid of {self.points} temperatures from {self.low} to {self.high} cannot be searched",
                f"Give {_LOWEST:g} <= low < high <= {_HIGHEST:g} and {_FEWEST} to {_MOST} points.",
            )

    def values(self) -> NDArray[np.float64]:
        """The temperatures [points], ascending."""
        return np.geomspace(self.low, self.high, self.points)

    def on_edge(self, temperature: float) -> bool:
        """Within 1 % of an end: the minimum may lie beyond it."""
        return not self.low * 1.01 < temperature < self.high / 1.01


DEFAULT_GRID = TemperatureGrid()


@dataclass(frozen=True, slots=True)
class SurvivalCells:
    """C cells of rows that have nearly the same prefix survival and logit.

    Survival of a cell at temperature T is prefix x sigmoid(logit / T), so one pass over the rows serves every T.
    """

    prefix: NDArray[np.float64]  # [C], product of the other positions' confidences
    logits: NDArray[np.float64]  # [C], of the position whose temperature is sought
    count: NDArray[np.float64]  # [C]
    survived: NDArray[np.float64]  # [C], rows of the cell that survived

    @classmethod
    def gather(
        cls, prefix: NDArray[np.floating], logits: NDArray[np.floating], survived: NDArray[np.bool_]
    ) -> SurvivalCells:
        """prefix, logits, survived [N] -> cells; exact (a cell a row) for small N."""
        if prefix.size <= _EXACT_UP_TO:
            label = survived.astype(np.float64)
            return cls(prefix.astype(np.float64), logits.astype(np.float64), np.ones(prefix.size), label)
        # Logit cells hold equal numbers of rows: their edges come from a sample, since they need not be exact.
        sample = np.sort(logits[:: max(1, logits.size // _EXACT_UP_TO)])
        edges = sample[np.linspace(0, sample.size - 1, _LOGIT_CELLS + 1).astype(np.intp)[1:-1]]
        cell = np.searchsorted(edges, logits).astype(np.int32)
        cell += bin_index(prefix, _PREFIX_CELLS).astype(np.int32) * np.int32(_LOGIT_CELLS)
        size = _PREFIX_CELLS * _LOGIT_CELLS
        count = np.bincount(cell, minlength=size)
        used = np.flatnonzero(count)

        def total(weights: NDArray[np.generic]) -> NDArray[np.float64]:
            return np.bincount(cell, weights=weights, minlength=size).astype(np.float64)[used]

        rows = count[used].astype(np.float64)
        mean_prefix = np.minimum(total(prefix) / rows, 1.0)
        return cls(mean_prefix, total(logits) / rows, rows, total(survived))

    def ece(self, temperature: float, *, bins: int) -> float:
        """Expected calibration error of survival if this position's confidence is taken at `temperature`."""
        gaps = np.zeros(bins)
        for start in range(0, self.count.size, _CHUNK):
            rows = slice(start, start + _CHUNK)
            predicted = confidence(self.logits[rows], temperature)
            predicted *= self.prefix[rows]
            index = bin_index(predicted, bins)
            # |sum of predictions - sum of labels| of a bin is its gap times its rows.
            predicted *= self.count[rows]
            predicted -= self.survived[rows]
            gaps += np.bincount(index, weights=predicted, minlength=bins)
        return float(np.abs(gaps).sum() / self.count.sum())


def minimise(objective: Callable[[float], float], grid: TemperatureGrid) -> float:
    """The temperature of the smallest objective; among equals the one nearest to 1.

    A grid first, because ECE has several local minima, then finer grids around the best point.
    """
    candidates = grid.values()
    best = _best(objective, candidates)
    step = candidates[1] / candidates[0]
    for _ in range(_REFINEMENTS):
        low, high = max(grid.low, best / step), min(grid.high, best * step)
        best = _best(objective, np.append(np.geomspace(low, high, _REFINED_POINTS), best))
        step = (high / low) ** (1 / (_REFINED_POINTS - 1))
    return best


def smooth_minimum(objective: Callable[[float], float], grid: TemperatureGrid) -> float:
    """`minimise` without the noise of a single point: the vertex of a parabola around it.

    Every row that crosses a bin's edge makes ECE jump, so its lowest point is partly luck. Its square is close to a
    parabola in log T near the minimum (chance squared plus miscalibration squared), and a parabola through many points
    averages the jumps out: on simulated heads the error of T_k halves.
    """
    lowest = minimise(objective, grid)
    if grid.on_edge(lowest):
        return lowest
    limit = _WINDOW_RISE * objective(lowest)
    half_width = _WIDEST_WINDOW
    while half_width > _NARROWEST_WINDOW:
        offsets = np.linspace(-half_width, half_width, _WINDOW_POINTS)
        offsets = offsets[(lowest * np.exp(offsets) >= grid.low) & (lowest * np.exp(offsets) <= grid.high)]
        squares = np.array([objective(float(lowest * np.exp(x))) for x in offsets]) ** 2
        near = _run_around(squares <= limit**2, int(np.argmin(np.abs(offsets))))
        if offsets[near].size >= _FEWEST_POINTS:
            curvature, slope, _ = np.polyfit(offsets[near], squares[near], 2)
            if curvature <= 0:
                return lowest
            vertex = np.clip(-slope / (2 * curvature), offsets[near][0], offsets[near][-1])
            return float(lowest * np.exp(vertex))
        half_width /= 2
    return lowest


def _run_around(inside: NDArray[np.bool_], centre: int) -> slice:
    """The unbroken run of true values around `centre`."""
    outside = np.flatnonzero(~inside)
    before, behind = outside[outside < centre], outside[outside > centre]
    return slice(int(before[-1]) + 1 if before.size else 0, int(behind[0]) if behind.size else inside.size)


def _best(objective: Callable[[float], float], candidates: NDArray[np.float64]) -> float:
    scores = np.array([objective(float(t)) for t in candidates])
    equals = candidates[scores == scores.min()]
    return float(equals[np.argmin(np.abs(np.log(equals)))])
