"""From raw samples to a staircase: in each bucket a linear law of what a batch holds, fitted to medians."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from itertools import combinations
from typing import Any

import numpy as np

from dspark.profiles.errors import ProfileError
from dspark.profiles.measurement import Measurement
from dspark.profiles.staircase import FloatArray, IntArray, Staircase


@dataclass(frozen=True, slots=True)
class PredictionError:
    """How far predictions are from the medians of measured points, as shares of the measured time."""

    num_points: int
    median: float | None
    p90: float | None
    largest: float | None


def fit_staircase(
    measurements: Sequence[Measurement],
    *,
    unit: str,
    load_unit: str,
    reference_load: Callable[[int], int],
    reference_longest: Callable[[int], int] | None = None,
) -> Staircase:
    """Fit the points of one kind; `reference_load(bucket)` and `reference_longest(bucket)` say what `time_s` is for.

    A bucket's time is a constant and two slopes, over the load and, if `reference_longest` is given, over the longest
    request. It minimises the sum of relative absolute errors, so that a few disturbed points do not bend it. Slopes are
    never negative and the constant is positive. A bucket measured under one load only takes the others' median slopes.
    p20 and p80 are the spread of repeats around their point's median.

    Raises:
        ProfileError: there are no points.
    """
    if not measurements:
        raise ProfileError("a staircase cannot be fitted without a measured point")
    buckets = sorted({m.bucket for m in measurements})
    groups = [[m for m in measurements if m.bucket == bucket] for bucket in buckets]
    sizes = [_sizes(group, with_longest=reference_longest is not None) for group in groups]
    medians = [np.array([m.median_s for m in group]) for group in groups]
    fits = [_fit(x, t) if np.ptp(x, axis=0).any() else None for x, t in zip(sizes, medians, strict=True)]
    slopes = [fit[1:] for fit in fits if fit is not None]
    shared = np.median(slopes, axis=0) if slopes else np.zeros(2)
    filled = [_fit_of_slopes(x, t, shared) if f is None else f for x, t, f in zip(sizes, medians, fits, strict=True)]
    load = np.array([reference_load(bucket) for bucket in buckets], dtype=np.int64)
    longest = np.array([reference_longest(b) if reference_longest is not None else 0 for b in buckets], dtype=np.int64)
    times = _times(np.array(filled), load, longest, groups)
    return Staircase(
        unit=unit,
        load_unit=load_unit,
        buckets=np.array(buckets, dtype=np.int64),
        reference_load=load,
        reference_longest=longest,
        **times,
    )


def fit_alike(measurements: Sequence[Measurement], like: Staircase) -> Staircase:
    """Fit points of what grows with a batch's load as `like` does, and takes another constant time in each bucket.

    One point a bucket is enough.

    Raises:
        ProfileError: a bucket of `like` has no point.
    """
    groups = [[m for m in measurements if m.bucket == bucket] for bucket in like.buckets]
    if not all(groups):
        raise ProfileError("a staircase cannot be fitted without a measured point in every bucket")
    slopes = np.stack([like.load_s, like.longest_s], axis=1)  # [B, 2]
    fits = [
        _fit_of_slopes(_sizes(group, with_longest=True), np.array([m.median_s for m in group]), slopes[i])
        for i, group in enumerate(groups)
    ]
    return replace(like, **_times(np.array(fits), like.reference_load, like.reference_longest, groups))


def complete(staircase: Staircase, other: Staircase) -> Staircase:
    """`staircase` with the buckets that only `other` has: where nothing was measured, a near relative's line."""
    lacking = ~np.isin(other.buckets, staircase.buckets)
    if not lacking.any():
        return staircase
    order = np.argsort(np.concatenate([staircase.buckets, other.buckets[lacking]]))
    columns: dict[str, Any] = {
        name: np.concatenate([getattr(staircase, name), getattr(other, name)[lacking]])[order]
        for name in (field.name for field in fields(Staircase) if not field.name.endswith("unit"))
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


def _sizes(group: Sequence[Measurement], *, with_longest: bool) -> FloatArray:
    """Load and longest request of each point, [n, 2]; zeros in place of the latter if it is not to matter."""
    return np.array([(m.load, m.longest_context if with_longest else 0) for m in group], dtype=np.float64)


def _fit(sizes: FloatArray, time_s: FloatArray) -> FloatArray:
    """sizes [n, 2], time_s [n] -> constant and slopes, [3], of least relative absolute error.

    The best fit with some slopes at zero goes through as many points as it has parameters, so all such are tried.
    """
    columns = np.column_stack([np.ones(len(time_s)), sizes])  # [n, 3]
    candidates = []
    # The flattest come first: of equally good ones the first is taken.
    for free in ([0], [0, 1], [0, 2], [0, 1, 2]):
        for points in combinations(range(len(time_s)), len(free)):
            matrix = columns[np.ix_(points, free)]
            if np.linalg.matrix_rank(matrix) < len(free):
                continue
            parameters = np.zeros(3)
            parameters[free] = np.linalg.solve(matrix, time_s[list(points)])
            if parameters[0] > 0 and (parameters[1:] >= 0).all():
                candidates.append(parameters)
    errors = np.abs(np.array(candidates) @ columns.T - time_s) / time_s  # [candidates, n]
    # Rounded: a flatter fit that is as good but for the last bits is the one wanted.
    return candidates[int(errors.sum(axis=1).round(9).argmin())]


def _fit_of_slopes(sizes: FloatArray, time_s: FloatArray, slopes: FloatArray) -> FloatArray:
    constant = float(np.median(time_s - sizes @ slopes))
    # Slopes from other buckets that leave nothing for this one's own work do not belong to it.
    return np.array([constant, *slopes]) if constant > 0 else np.array([np.median(time_s), 0.0, 0.0])


def _times(
    fits: FloatArray, load: IntArray, longest: IntArray, groups: Sequence[Sequence[Measurement]]
) -> dict[str, Any]:
    """fits [B, 3] of the buckets' points -> the times of a staircase whose references are load [B] and longest [B]."""
    constant, load_s, longest_s = fits.T
    time_s = constant + load_s * load + longest_s * longest
    spread = np.array([_spread(group) for group in groups])  # [B, 2]
    return {
        "time_s": time_s,
        "p20_s": time_s * spread[:, 0],
        "p80_s": time_s * spread[:, 1],
        "load_s": load_s,
        "longest_s": longest_s,
    }


def _spread(group: Sequence[Measurement]) -> tuple[float, float]:
    """p20 and p80 of the samples as shares of their own point's median."""
    shares = np.concatenate([np.array(m.samples_s) / m.median_s for m in group])
    low, high = np.quantile(shares, (0.2, 0.8))
    return min(float(low), 1.0), max(float(high), 1.0)
