"""The fit against measurements whose truth is known."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from profile_samples import AT_ZERO_S, BUCKETS, PER_KV_TOKEN_S, measurement, reference_load, target_measurements
from scipy.optimize import linprog

from dspark.profiles import TARGET, Measurement, ProfileError, fit_alike, fit_staircase, prediction_error


def fit(measurements):
    return fit_staircase(measurements, unit="tokens", load_unit="visible KV tokens", reference_load=reference_load)


@pytest.mark.parametrize(("noise", "tolerance"), [(0.0, 1e-9), (0.02, 0.03)], ids=["exact", "noisy"])
def test_recovers_a_staircase_and_its_slopes(noise, tolerance):
    stairs = fit(target_measurements(noise))
    load = np.array([reference_load(bucket) for bucket in BUCKETS])
    truth = np.array(AT_ZERO_S) + np.array(PER_KV_TOKEN_S) * load
    assert stairs.buckets.tolist() == list(BUCKETS)
    np.testing.assert_allclose(stairs.time_s, truth, rtol=tolerance)
    # What a slope is good for: times at loads far from the reference.
    np.testing.assert_allclose(
        stairs.time_at(BUCKETS, load + 4000),
        np.array(AT_ZERO_S) + np.array(PER_KV_TOKEN_S) * (load + 4000),
        rtol=2 * tolerance,
    )


def points_of(bucket, slopes, *, requests, contexts, constant=0.001):
    """A full bucket's points by a law: seconds a visible KV token, a token of the longest request, and a request."""
    points = []
    for number in requests:
        for context in contexts:
            sizes = (number * context + bucket, context - (-bucket // number), number)
            time_s = constant + float(np.dot(slopes, sizes))
            points.append(measurement(TARGET, bucket, bucket, number, context, sizes[0], [time_s]))
    return points


def fit_all(points):
    """With all three slopes; a bucket's times are for 1000 KV tokens of 3 requests, the longest of which sees 300."""
    return fit_staircase(
        points,
        unit="tokens",
        load_unit="KV",
        reference_load=lambda _: 1000,
        reference_longest=lambda _: 300,
        reference_requests=lambda _: 3,
    )


def slopes_of(stairs):
    """[B, 3]"""
    return np.stack([stairs.load_s, stairs.longest_s, stairs.request_s], axis=1)


LAWS = {
    "none": (0.0, 0.0, 0.0),
    "total": (2e-7, 0.0, 0.0),
    "longest": (0.0, 3e-6, 0.0),
    "requests": (0.0, 0.0, 4e-5),
    "total and longest": (1e-7, 2e-6, 0.0),
    "total and requests": (1e-7, 0.0, 5e-5),
    "all": (1e-7, 2e-6, 5e-5),
}


@pytest.mark.parametrize("contexts", [(100, 500), (100, 300, 500)], ids=["enough points", "points to spare"])
@pytest.mark.parametrize("slopes", LAWS.values(), ids=LAWS.keys())
def test_what_all_requests_the_longest_and_each_cost_is_told_apart(slopes, contexts):
    stairs = fit_all(points_of(8, slopes, requests=(2, 8), contexts=contexts))
    np.testing.assert_allclose(slopes_of(stairs)[0], slopes, rtol=1e-6)
    # Flat where the law is: not merely nearly so.
    assert (slopes_of(stairs)[0] == 0).tolist() == [slope == 0 for slope in slopes]
    np.testing.assert_allclose(stairs.time_s, 0.001 + np.dot(slopes, (1000, 300, 3)))
    np.testing.assert_allclose(stairs.time_at(5, 4000, longest=700, requests=6), 0.001 + np.dot(slopes, (4000, 700, 6)))


@pytest.mark.parametrize("seed", range(8))
def test_no_law_of_the_kind_has_a_smaller_error_at_noisy_points(seed):
    rng = np.random.default_rng(seed)
    points = [
        measurement(TARGET, 8, 8, m.num_requests, m.context_tokens, m.kv_tokens, [m.median_s * rng.uniform(0.8, 1.2)])
        for m in points_of(8, LAWS["all"], requests=(1, 3, 8), contexts=(100, 300, 700))
    ]
    sizes = np.array([(1, m.kv_tokens, m.context_tokens - (-8 // m.num_requests), m.num_requests) for m in points])
    times = np.array([m.median_s for m in points])
    # Least sum of relative errors as a linear programme: four parameters and one error a point, none below zero.
    shares, errors = sizes / times[:, None], np.eye(len(points))
    bounded = np.block([[shares, -errors], [-shares, -errors]])
    cost = np.concatenate([np.zeros(4), np.ones(len(points))])
    least = linprog(cost, A_ub=bounded, b_ub=np.concatenate([np.ones(len(points)), -np.ones(len(points))]))
    assert least.status == 0 and least.x[0] > 0
    stairs = fit_all(points)
    found = stairs.time_at(8, sizes[:, 1], longest=sizes[:, 2], requests=sizes[:, 3])
    assert np.abs(found / times - 1).sum() == pytest.approx(least.fun, rel=1e-7)


@pytest.mark.parametrize("slopes", [(1e-8, 0, 0), (1e-8, 8e-8, 0), (0, 0, 3e-6), (1e-9, 2e-9, 3e-6)], ids=str)
@pytest.mark.parametrize("contexts", [(64, 1024), (1, 64, 256, 4096)], ids=str)
def test_times_that_are_all_slope_are_fitted_to_their_last_digits(slopes, contexts):
    points = [
        point
        for bucket, requests in ((1, (1,)), (2, (1, 2)), (4, (1, 4)), (64, (8, 64)))
        for point in points_of(bucket, slopes, requests=requests, contexts=contexts, constant=0)
    ]
    stairs = fit_all(points)
    found = [stairs.time_at(p.bucket, p.load, longest=p.longest_context, requests=p.num_requests) for p in points]
    np.testing.assert_allclose(found, [p.median_s for p in points], rtol=1e-6)


def test_a_hundred_points_of_a_bucket_are_fitted_as_well_as_a_few():
    """Exact fits through all of them would be four million."""
    contexts = range(100, 5100, 100)
    rng = np.random.default_rng(0)
    points = [
        replace(point, wall_s=(point.median_s * rng.uniform(0.99, 1.01),), device_s=None)
        for point in points_of(64, LAWS["all"], requests=(8, 64), contexts=contexts)
    ]
    stairs = fit_all(points)
    loads = np.array([(64 * 5000, 5000, 64), (8 * 100, 100, 8), (30 * 900, 2000, 30)])
    predicted = [stairs.time_at(64, load, longest=longest, requests=number) for load, longest, number in loads.tolist()]
    np.testing.assert_allclose(predicted, 0.001 + loads @ LAWS["all"], rtol=0.02)


def test_a_bucket_of_too_few_points_takes_the_nearest_ones_slopes():
    near, far = (1e-7, 2e-6, 5e-5), (3e-7, 1e-6, 9e-5)
    # Two contexts of equally many requests tell one slope, which need not be the other bucket's.
    own = (1.5e-7, *near[1:])
    points = [
        *points_of(8, near, requests=(2, 8), contexts=(100, 500)),
        *points_of(16, own, requests=(2,), contexts=(100, 500), constant=0.002),
        *points_of(32, far, requests=(8,), contexts=(300,), constant=0.003),
        *points_of(64, far, requests=(8, 64), contexts=(100, 500), constant=0.004),
    ]
    stairs = fit_all(points)
    np.testing.assert_allclose(slopes_of(stairs), [near, own, far, far], rtol=1e-6)
    at_zero = stairs.time_s - slopes_of(stairs) @ (1000, 300, 3)
    np.testing.assert_allclose(at_zero, [0.001, 0.002, 0.003, 0.004], rtol=1e-6)


def test_a_bucket_of_too_few_points_keeps_its_own_slope_where_the_nearest_ones_do_not_fit():
    points = points_of(8, LAWS["all"], requests=(2, 8), contexts=(100, 500))
    # 400 tokens more of the longest request would be 0.8 ms by the other bucket, and are 0.08 ms here.
    points += points_of(16, (1e-7, 0.0, 0.0), requests=(2,), contexts=(100, 500))
    np.testing.assert_allclose(slopes_of(fit_all(points)), [LAWS["all"], (1e-7, 0, 0)], rtol=1e-6, atol=1e-18)


def test_one_disturbed_point_moves_nothing():
    points = target_measurements(0.0)
    disturbed = [
        Measurement(**{**{f: getattr(m, f) for f in m.__slots__}, "wall_s": tuple(3 * s for s in m.wall_s)})
        if i % 6 == 4
        else m
        for i, m in enumerate(points)
    ]
    clean, dirty = fit(points), fit(disturbed)
    np.testing.assert_allclose(dirty.time_s[2:], clean.time_s[2:], rtol=1e-9)


def test_a_falling_trend_is_fitted_level():
    stairs = fit([measurement(TARGET, 1, 1, 1, c, c + 1, [t]) for c, t in ((256, 0.3), (1024, 0.2), (4096, 0.1))])
    assert stairs.load_s.tolist() == [0]
    assert 0.1 <= stairs.time_s[0] <= 0.3


def test_an_empty_context_still_costs_something():
    # The steepest line through these would give a negative time at no context.
    stairs = fit([measurement(TARGET, 1, 1, 1, c, c + 1, [t]) for c, t in ((1000, 0.001), (1100, 0.1), (1200, 0.2))])
    assert stairs.time_at(1, 0) > 0


def test_a_bucket_with_one_load_takes_the_others_slope():
    points = [
        measurement(TARGET, 1, 1, 1, 199, 200, [0.01]),
        measurement(TARGET, 2, 2, 1, 98, 100, [0.02]),
        measurement(TARGET, 2, 2, 1, 198, 200, [0.03]),
        measurement(TARGET, 4, 4, 1, 9, 1000, [0.001]),
    ]
    stairs = fit(points)
    # 1e-4 s a token leaves nothing of the last one's time.
    np.testing.assert_allclose(stairs.load_s, [0, 1e-4, 0], atol=1e-12)
    points[0] = measurement(TARGET, 1, 1, 1, 49, 50, [0.01])
    np.testing.assert_allclose(fit(points).load_s, [1e-4, 1e-4, 0], atol=1e-12)


def test_the_band_is_the_spread_of_repeats_not_of_points():
    samples = [0.9, 1.0, 1.0, 1.0, 1.1]
    stairs = fit([measurement(TARGET, 1, 1, 1, c, c + 1, [f * s for s in samples]) for c, f in ((10, 1), (1000, 5))])
    np.testing.assert_allclose(stairs.p20_s / stairs.time_s, np.quantile(samples + samples, 0.2))
    np.testing.assert_allclose(stairs.p80_s / stairs.time_s, np.quantile(samples + samples, 0.8))


def predicted(stairs, points):
    return stairs.time_at([p.bucket for p in points], [p.load for p in points])


def test_residuals_are_stated():
    points = target_measurements(0.0)
    stairs = fit(points)
    error = prediction_error(predicted(stairs, points), points)
    assert error.num_points == len(points)
    assert error.largest == pytest.approx(0, abs=1e-9)
    late = [measurement(TARGET, 1, 1, 1, 256, 257, [2 * (AT_ZERO_S[0] + PER_KV_TOKEN_S[0] * 257)])]
    assert prediction_error(predicted(stairs, late), late).median == pytest.approx(0.5)
    assert prediction_error([], []).median is None


def test_device_time_is_preferred_to_the_wall_clock():
    point = Measurement(TARGET, 1, 1, 1, 1, 2, False, (3.0, 3.0), device_s=(1.0, 2.0))
    assert point.median_s == 1.5
    assert fit([point]).time_s.tolist() == [1.5]


def test_nothing_measured_is_refused():
    with pytest.raises(ProfileError, match="without a measured point"):
        fit([])


@pytest.mark.parametrize("samples", [(), (0.0,), (-1.0,), (float("nan"),), (float("inf"),)], ids=str)
def test_no_such_samples(samples):
    with pytest.raises(ValueError, match="no samples"):
        Measurement(TARGET, 1, 1, 1, 1, 2, False, samples)


def test_one_point_a_bucket_is_enough_where_the_slopes_are_known():
    like = fit(target_measurements(0.0))
    points = [
        measurement(TARGET, b, b, 1, 99, 100 + b, [at_zero / 2]) for b, at_zero in zip(BUCKETS, AT_ZERO_S, strict=True)
    ]
    stairs = fit_alike(points, like)
    assert stairs.load_s.tolist() == like.load_s.tolist()
    loads = [100 + b for b in BUCKETS]
    np.testing.assert_allclose(stairs.time_at(BUCKETS, loads), np.array(AT_ZERO_S) / 2)
    farther = np.array(AT_ZERO_S) / 2 + 4000 * np.array(PER_KV_TOKEN_S)
    np.testing.assert_allclose(stairs.time_at(BUCKETS, np.array(loads) + 4000), farther)
    with pytest.raises(ProfileError, match="a measured point in every bucket"):
        fit_alike(points[1:], like)
    law = (1e-7, 2e-6, 5e-5)
    like = fit_all(points_of(8, law, requests=(2, 8), contexts=(100, 500)))
    alike = fit_alike(points_of(8, law, requests=(4,), contexts=(200,), constant=0.005), like)
    np.testing.assert_allclose(alike.time_at(8, 900, longest=80, requests=7), 0.005 + np.dot(law, (900, 80, 7)))
