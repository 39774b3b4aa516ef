"""Fit one temperature a draft position: sequentially by ECE, by likelihood, or jointly by ECE."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from dspark.calibration.confidence import confidence
from dspark.calibration.ece import DEFAULT_BINS, check_bins
from dspark.calibration.errors import CalibrationError
from dspark.calibration.search import DEFAULT_GRID, SurvivalCells, TemperatureGrid, minimise, smooth_minimum
from dspark.calibration.traces import Traces

METHODS = ("sts", "joint", "nll")

# Fewer rounds that reached a position, or fewer of either outcome, say nothing about its temperature.
FEWEST_OBSERVED = 100
FEWEST_OUTCOMES = 5

_MOST_SWEEPS = 5
_SMALLEST_GAIN = 1e-5


@dataclass(frozen=True, slots=True)
class PositionFit:
    """Temperature of one position and what it rests on."""

    temperature: float
    observed: int  # rounds that reached the position
    accepted: int  # of those
    fitted: bool  # False: too little was observed, the temperature was left at 1
    on_edge: bool  # the minimum may lie outside the grid


def fit_temperatures(
    traces: Traces, method: str = "sts", *, bins: int = DEFAULT_BINS, grid: TemperatureGrid = DEFAULT_GRID
) -> list[PositionFit]:
    """One fit a position, from all rounds given.

    `sts` goes left to right and takes the T_k of smallest ECE of the survival a_k, with those before it fixed. `joint`
    goes on from there over all positions, again and again, to the smallest mean ECE of all a_k. `nll` takes each T_k
    by likelihood on the rounds that reached position k.

    Raises:
        CalibrationError: no rounds, no such method, or too many bins.
    """
    check_bins(bins)
    if method not in METHODS:
        raise CalibrationError(f"there is no calibration method {method!r}", f"Choose one of: {', '.join(METHODS)}.")
    if len(traces) == 0:
        raise CalibrationError("there are no rounds to calibrate on", "Record traces of some requests first.")
    fittable = [_enough(traces, k) for k in range(1, traces.gamma + 1)]
    if method == "nll":
        temperatures = [_by_likelihood(traces, k + 1, grid) if fittable[k] else 1.0 for k in range(traces.gamma)]
    else:
        temperatures = _sequentially(traces, fittable, bins, grid)
        if method == "joint":
            temperatures = _jointly(traces, temperatures, fittable, bins, grid)
    return [
        PositionFit(t, *_outcomes(traces, k + 1), fitted=fittable[k], on_edge=fittable[k] and grid.on_edge(t))
        for k, t in enumerate(temperatures)
    ]


def _outcomes(traces: Traces, position: int) -> tuple[int, int]:
    observed, accepted = traces.observed_at(position)
    return int(observed.sum()), int(accepted.sum())


def _enough(traces: Traces, position: int) -> bool:
    observed, accepted = _outcomes(traces, position)
    return observed >= FEWEST_OBSERVED and min(accepted, observed - accepted) >= FEWEST_OUTCOMES


def _sequentially(traces: Traces, fittable: list[bool], bins: int, grid: TemperatureGrid) -> list[float]:
    temperatures: list[float] = []
    prefix = np.ones(len(traces))
    for k in range(traces.gamma):
        logits = traces.confidence_logits[:, k]
        temperature = 1.0
        if fittable[k]:
            known, survived = traces.survival_known_at(k + 1)
            cells = SurvivalCells.gather(prefix[known], logits[known], survived[known])
            temperature = smooth_minimum(partial(cells.ece, bins=bins), grid)
        temperatures.append(temperature)
        prefix *= confidence(logits, temperature)
    return temperatures


def _by_likelihood(traces: Traces, position: int, grid: TemperatureGrid) -> float:
    """Maximum-likelihood T_k: a root in 1/T, because the negative log-likelihood is convex there."""
    from scipy.optimize import brentq

    observed, accepted = traces.observed_at(position)
    logits = traces.confidence_logits[observed, position - 1].astype(np.float64)
    labels = accepted[observed]

    def slope(inverse_temperature: float) -> float:
        return float(np.dot(logits, confidence(logits, 1.0 / inverse_temperature) - labels))

    low, high = 1.0 / grid.high, 1.0 / grid.low
    if slope(low) >= 0:
        return grid.high
    if slope(high) <= 0:
        return grid.low
    return float(1.0 / brentq(slope, low, high, xtol=1e-6))


def _jointly(
    traces: Traces, temperatures: list[float], fittable: list[bool], bins: int, grid: TemperatureGrid
) -> list[float]:
    """Coordinate descent on the mean ECE over positions: T_j moves the survival of position j and of all behind it."""
    current = list(temperatures)
    before = np.inf
    for _ in range(_MOST_SWEEPS):
        total = 0.0
        for j in range(traces.gamma):
            if not fittable[j]:
                continue
            cells = list(_cells_behind(traces, current, j))

            def objective(t: float, cells: list[SurvivalCells] = cells) -> float:
                return sum(c.ece(t, bins=bins) for c in cells)

            old = objective(current[j])
            # A narrow grid: the sequential solution is near, and a far minimum of one coordinate is an artefact.
            near = TemperatureGrid(max(grid.low, current[j] / 1.5), min(grid.high, current[j] * 1.5), 15)
            candidate = minimise(objective, near)
            new = objective(candidate)
            if new < old:
                current[j] = candidate
            total += max(0.0, old - new)
        if total < _SMALLEST_GAIN * traces.gamma or total >= before:
            break
        before = total
    return current


def _cells_behind(traces: Traces, temperatures: list[float], j: int) -> Iterator[SurvivalCells]:
    """For every position k >= j: its rows, by the product of the confidences up to k without j, and the logit at j."""
    rest: NDArray[np.float64] = np.ones(len(traces))
    for i in range(traces.gamma):
        if i != j:
            rest *= confidence(traces.confidence_logits[:, i], temperatures[i])
        if i >= j:
            known, survived = traces.survival_known_at(i + 1)
            if known.any():
                yield SurvivalCells.gather(rest[known], traces.confidence_logits[known, j], survived[known])
