"""From raw samples to a staircase: in each bucket a line over the load, fitted to medians."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from dspark.profiles.errors import ProfileError
from dspark.profiles.measurement import Measurement
from dspark.profiles.staircase import FloatArray, Staircase


@dataclass(frozen=True, slots=True)
class PredictionError:
    """How far predictions are from the medians of measured points, as shares of the measured time."""

    num_points: int
    median: float | None
    p90: float | None
    largest: float | None


def fit_staircase(
    measurements: Sequence[Measurement], *, unit: str, load_unit: str, reference_load: Callable[[int], int]
) -> Staircase:
    """Fit the points of one kind; `reference_load(bucket)` says which load `time_s` is for.

    The line of a bucket minimises the sum of relative absolute errors, so that a few disturbed points do not bend it.
    Its slope is never negative and its value at no load positive. A bucket measured under one load only takes the
    others' median slope. p20 and p80 are the spread of repeats around their point's median.

    Raises:
        ProfileError: there are no points.
    """
    if not measurements:
        raise ProfileError("A staircase cannot be fitted without a measured point.")
    buckets = sorted({m.bucket for m in measurements})
    groups = [[m for m in measurements if m.bucket == bucket] for bucket in buckets]
    loads = [np.array([m.load for m in group], dtype=np.float64) for group in groups]
    medians = [np.array([m.median_s for m in group]) for group in groups]
    lines = [_line(v, t) if np.ptp(v) > 0 else None for v, t in zip(loads, medians, strict=True)]
    slopes = [line[1] for line in lines if line is not None]
    shared = float(np.median(slopes)) if slopes else 0.0
    reference = np.array([reference_load(bucket) for bucket in buckets], dtype=np.int64)
    at_zero, slope = np.empty(len(buckets)), np.empty(len(buckets))
    for i, line in enumerate(lines):
        at_zero[i], slope[i] = line or _line_of_slope(loads[i], medians[i], shared)
    time_s = at_zero + slope * reference
    spread = np.array([_spread(group) for group in groups])  # [B, 2]
    return Staircase(
        unit=unit,
        load_unit=load_unit,
        buckets=np.array(buckets, dtype=np.int64),
        time_s=time_s,
        p20_s=time_s * spread[:, 0],
        p80_s=time_s * spread[:, 1],
        reference_load=reference,
        load_s=slope,
    )


def complete(staircase: Staircase, other: Staircase) -> Staircase:
    """`staircase` with the buckets that only `other` has: where nothing was measured, a near relative's line."""
    lacking = ~np.isin(other.buckets, staircase.buckets)
    if not lacking.any():
        return staircase
    order = np.argsort(np.concatenate([staircase.buckets, other.buckets[lacking]]))
    columns: dict[str, Any] = {
        name: np.concatenate([getattr(staircase, name), getattr(other, name)[lacking]])[order]
        for name in ("buckets", "time_s", "p20_s", "p80_s", "reference_load", "load_s")
    }
    return replace(staircase, **columns)


def prediction_error(predicted_s: Sequence[float], measurements: Sequence[Measurement]) -> PredictionError:
    """Compare predictions [n] with the points [n] they are for, whether they were fitted to them or not."""
    if not measurements:
        return PredictionError(num_points=0, median=None, p90=None, largest=None)
    measured = np.array([m.median_s for m in measurements])
    errors = np.abs(np.asarray(predicted_s) - measured) / measured
    median, p90, largest = (float(q) for q in np.quantile(errors, (0.5, 0.9, 1)))
    return PredictionError(num_points=len(measurements), median=median, p90=p90, largest=largest)


def _line(load: FloatArray, time_s: FloatArray) -> tuple[float, float]:
    """load [n], time_s [n] -> value at 0 and slope of the best line: one through two points, or a level one."""
    first, second = np.triu_indices(len(load), k=1)
    apart = load[first] != load[second]
    first, second = first[apart], second[apart]
    slope = (time_s[second] - time_s[first]) / (load[second] - load[first])
    at_zero = time_s[first] - slope * load[first]
    possible = (slope > 0) & (at_zero > 0)
    # Level lines first: of equally good ones the flattest is taken.
    slope = np.concatenate([np.zeros_like(time_s), slope[possible]])
    at_zero = np.concatenate([time_s, at_zero[possible]])
    errors = np.abs(at_zero[:, None] + slope[:, None] * load - time_s) / time_s  # [candidates, n]
    best = int(errors.sum(axis=1).argmin())
    return float(at_zero[best]), float(slope[best])


def _line_of_slope(load: FloatArray, time_s: FloatArray, slope: float) -> tuple[float, float]:
    at_zero = float(np.median(time_s - slope * load))
    # A slope from other buckets that leaves nothing for this one's own work does not belong to it.
    return (at_zero, slope) if at_zero > 0 else (float(np.median(time_s)), 0.0)


def _spread(group: Sequence[Measurement]) -> tuple[float, float]:
    """p20 and p80 of the samples as shares of their own point's median."""
    shares = np.concatenate([np.array(m.samples_s) / m.median_s for m in group])
    low, high = np.quantile(shares, (0.2, 0.8))
    return min(float(low), 1.0), max(float(high), 1.0)
