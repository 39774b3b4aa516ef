"""From raw samples to a staircase: in each bucket a linear law of what a batch holds, fitted to medians."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from itertools import combinations
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from dspark.profiles.errors import ProfileError
from dspark.profiles.measurement import Measurement
from dspark.profiles.staircase import FloatArray, IntArray, Staircase

# Of the shortest time. What is nearer to zero than this is rounding, where slopes take all of the time.
_LEAST_CONSTANT = 1e-9
_MOST_POINTS = 24  # of a bucket that exact fits go through


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
    reference_requests: Callable[[int], int] | None = None,
) -> Staircase:
    """Fit the points of one kind; `reference_load(bucket)` and the other two say what `time_s` is for.

    A bucket's time is a constant and up to three slopes: over the load and, where their reference is given, over the
    longest request and over the number of requests. It minimises the sum of relative absolute errors, so that a few
    disturbed points do not bend it. Slopes are never negative and the constant is positive; of equally good fits the
    one with the fewest slopes is taken. Where a bucket's points are too few to tell the slopes apart, those of the
    nearest bucket that can tell them go before, as far as they fit as well. p20 and p80 are the spread of repeats
    around their point's median.

    Raises:
        ProfileError: there are no points.
    """
    if not measurements:
        raise ProfileError("a staircase cannot be fitted without a measured point")
    buckets = sorted({m.bucket for m in measurements})
    groups = [[m for m in measurements if m.bucket == bucket] for bucket in buckets]
    references = (reference_load, reference_longest, reference_requests)
    counted = np.array([True, *(reference is not None for reference in references)])
    columns = [_columns(group) * counted for group in groups]
    medians = [np.array([m.median_s for m in group]) for group in groups]
    at = [[0 if reference is None else reference(bucket) for reference in references] for bucket in buckets]
    return Staircase(
        unit=unit,
        load_unit=load_unit,
        buckets=np.array(buckets, dtype=np.int64),
        **_laws(_fits(columns, medians, np.array(buckets)), np.array(at, dtype=np.int64), groups),
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
    slopes = np.stack([like.load_s, like.longest_s, like.request_s], axis=1)  # [B, 3]
    at = np.stack([like.reference_load, like.reference_longest, like.reference_requests], axis=1)  # [B, 3]
    fits = [
        _fit_of_slopes(_columns(group)[:, 1:], np.array([m.median_s for m in group]), slopes[i])
        for i, group in enumerate(groups)
    ]
    return replace(like, **_laws(np.array(fits), at, groups))


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


def _columns(group: Sequence[Measurement]) -> FloatArray:
    """1, load, longest request and number of requests of each point, [n, 4]."""
    return np.array([(1, m.load, m.longest_context, m.num_requests) for m in group], dtype=np.float64)


def _fits(columns: Sequence[FloatArray], medians: Sequence[FloatArray], buckets: IntArray) -> FloatArray:
    """Points of each of `buckets` [B], columns [n, 4] and medians [n] -> constants and slopes, [B, 4]."""
    fits = np.array([_fit(x, time_s) for x, time_s in zip(columns, medians, strict=True)])
    told = np.array([np.linalg.matrix_rank(x) for x in columns])
    tell_most = np.flatnonzero(told == told.max())
    for i in np.flatnonzero(told < told.max()).tolist():
        apart = np.abs(np.log(buckets[tell_most] / buckets[i]))
        fits[i] = _fit_beside(columns[i], medians[i], own=fits[i], near=fits[tell_most[apart.argmin()]])
    return fits


def _fit(columns: FloatArray, time_s: FloatArray) -> FloatArray:
    """columns [n, 4], time_s [n] -> constant and slopes, [4], of least relative absolute error.

    The best fit with some slopes at zero goes through as many points as it has parameters, so all such are tried.
    """
    candidates = []
    # The flattest come first: of equally good ones the first is taken.
    for num_slopes in range(columns.shape[1]):
        for slopes in combinations(range(1, columns.shape[1]), num_slopes):
            candidates.append(_exact_fits(columns, time_s, free=[0, *slopes]))
    return _best(np.concatenate(candidates), columns, time_s)


def _fit_beside(columns: FloatArray, time_s: FloatArray, *, own: FloatArray, near: FloatArray) -> FloatArray:
    """The same for points that do not tell all slopes: `near` [4] of another bucket where it fits as well as `own` [4].

    All its slopes are tried, and all but the load's: few requests at two contexts tell no more than that one.
    """
    candidates = []
    for free in ([0], [0, 1]):
        given = near.copy()
        given[free] = 0
        candidates.append(given + _exact_fits(columns, time_s - columns @ given, free=free))
    return _best(np.concatenate([*candidates, own[None]]), columns, time_s)


def _best(fits: FloatArray, columns: FloatArray, time_s: FloatArray) -> FloatArray:
    """The first of the best of `fits` [fits, 4] that a device can follow."""
    fits[:, 0] = _beyond_rounding(fits[:, 0], time_s)
    fits = fits[(fits[:, 0] > 0) & (fits[:, 1:] >= 0).all(axis=1)]
    errors = np.abs(fits @ columns.T - time_s) / time_s  # [fits, n]
    # Rounded: one that comes before and is as good but for the last bits is the one wanted.
    return fits[int(errors.sum(axis=1).round(9).argmin())]


def _exact_fits(columns: FloatArray, time_s: FloatArray, *, free: list[int]) -> FloatArray:
    """columns [n, 4], time_s [n] -> parameters [fits, 4], zero but for `free`, each through points that tell them."""
    # Of many points some, evenly taken: the fits are as many as the fourth power of what they go through.
    some = np.unique(np.linspace(0, len(time_s) - 1, min(len(time_s), _MOST_POINTS)).round().astype(np.int64))
    points = some[np.array(list(combinations(range(len(some)), len(free))), dtype=np.int64).reshape(-1, len(free))]
    matrices = columns[points][:, :, free]
    tells = np.linalg.matrix_rank(matrices) == len(free)
    fits = np.zeros((int(tells.sum()), columns.shape[1]))
    fits[:, free] = np.linalg.solve(matrices[tells], time_s[points[tells]][:, :, None])[:, :, 0]
    return fits


def _fit_of_slopes(sizes: FloatArray, time_s: FloatArray, slopes: FloatArray) -> FloatArray:
    constant = float(_beyond_rounding(np.median(time_s - sizes @ slopes), time_s))
    # Slopes from other buckets that leave nothing for this one's own work do not belong to it.
    return np.array([constant, *slopes]) if constant > 0 else np.array([np.median(time_s), *(0 * slopes)])


def _beyond_rounding(constants: ArrayLike, time_s: FloatArray) -> FloatArray:
    """Those that are zero but for the last digits as the least constant that a staircase can tell from zero."""
    least = _LEAST_CONSTANT * time_s.min()
    return np.where(np.abs(constants) < least, least, constants)


def _laws(fits: FloatArray, at: IntArray, groups: Sequence[Sequence[Measurement]]) -> dict[str, Any]:
    """fits [B, 4] of the buckets' points, references [B, 3] -> a staircase's columns of those references."""
    time_s = fits[:, 0] + (fits[:, 1:] * at).sum(axis=1)
    spread = np.array([_spread(group) for group in groups])  # [B, 2]
    return {
        "time_s": time_s,
        "p20_s": time_s * spread[:, 0],
        "p80_s": time_s * spread[:, 1],
        "reference_load": at[:, 0],
        "load_s": fits[:, 1],
        "reference_longest": at[:, 1],
        "longest_s": fits[:, 2],
        "reference_requests": at[:, 2],
        "request_s": fits[:, 3],
    }


def _spread(group: Sequence[Measurement]) -> tuple[float, float]:
    """p20 and p80 of the samples as shares of their own point's median."""
    shares = np.concatenate([np.array(m.samples_s) / m.median_s for m in group])
    low, high = np.quantile(shares, (0.2, 0.8))
    return min(float(low), 1.0), max(float(high), 1.0)
