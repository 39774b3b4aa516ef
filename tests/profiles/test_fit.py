"""The fit against measurements whose truth is known."""

from __future__ import annotations

import numpy as np
import pytest
from profile_samples import AT_ZERO_S, BUCKETS, PER_KV_TOKEN_S, measurement, reference_load, target_measurements

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


@pytest.mark.parametrize("slopes", [(2e-7, 0.0), (0.0, 3e-6), (1e-7, 2e-6)], ids=["total", "longest", "both"])
def test_the_longest_request_is_told_apart_from_all_requests_together(slopes):
    points = []
    for requests in (2, 8):
        for context in (100, 500):
            kv_tokens, longest = requests * context + 8, context + 8 // requests
            time_s = 0.001 + slopes[0] * kv_tokens + slopes[1] * longest
            points.append(measurement(TARGET, 8, 8, requests, context, kv_tokens, [time_s]))
    stairs = fit_staircase(
        points, unit="tokens", load_unit="KV", reference_load=lambda _: 1000, reference_longest=lambda _: 300
    )
    np.testing.assert_allclose([stairs.load_s[0], stairs.longest_s[0]], slopes, rtol=1e-6, atol=1e-15)
    np.testing.assert_allclose(stairs.time_s, 0.001 + 1000 * slopes[0] + 300 * slopes[1])


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
