"""Look-ups: by the bucket that will run, at the load that there is."""

from __future__ import annotations

import numpy as np
import pytest

from dspark.profiles import ProfileError, Staircase


def stairs(**changes):
    values = {
        "unit": "tokens",
        "load_unit": "visible KV tokens",
        "buckets": [8, 16, 32],
        "time_s": [1.0, 3.0, 2.0],
        "p20_s": [0.9, 2.9, 1.9],
        "p80_s": [1.1, 3.1, 2.1],
        "reference_load": [100, 200, 300],
        "load_s": [0.0, 0.001, 0.002],
        "reference_longest": [64, 64, 64],
        "longest_s": [0.0, 0.01, 0.0],
    }
    return Staircase(**(values | changes))


def test_a_count_takes_the_smallest_bucket_that_holds_it():
    curve = stairs()
    counts = np.arange(1, 33)
    expected = [8] * 8 + [16] * 8 + [32] * 16
    assert curve.buckets[curve.index_of(counts)].tolist() == expected
    assert curve.time_at(counts).tolist() == [{8: 1.0, 16: 3.0, 32: 2.0}[b] for b in expected]
    assert curve.time_at(np.array([[1, 32]])).shape == (1, 2)
    assert float(curve.time_at(9)) == 3.0


def test_past_the_largest_bucket_both_numbers_are_named():
    with pytest.raises(ProfileError, match="33 tokens is beyond the largest profiled bucket of 32") as caught:
        stairs().time_at([1, 33])
    assert "--max-batch-tokens" in caught.value.remedy
    with pytest.raises(ProfileError, match="0 tokens has no bucket"):
        stairs().index_of(0)
    assert stairs().index_of([]).tolist() == []


def test_load_beyond_and_below_the_reference():
    curve = stairs()
    np.testing.assert_allclose(curve.time_at([9, 9, 9, 1], [200, 1200, 0, 10**6]), [3.0, 4.0, 2.8, 1.0])
    np.testing.assert_allclose(curve.time_at([9, 9], [200, 1200], longest=[164, 14]), [4.0, 3.5])
    np.testing.assert_allclose(curve.time_at(9, longest=64), 3.0)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"buckets": [8, 8, 16]}, "not increasing"),
        ({"buckets": [0, 8, 16]}, "not increasing"),
        ({"buckets": [8.5, 9, 16]}, "whole numbers"),
        ({"buckets": []}, "no list|not increasing"),
        ({"time_s": [1.0, 2.0]}, "one value a bucket"),
        ({"time_s": [1.0, float("nan"), 2.0]}, "not a number"),
        ({"time_s": ["1", "2", "3"]}, "no list of numbers"),
        ({"time_s": [1.0, 0.0, 2.0]}, r"time_s\[1\] is 0, not from 1e-09 to 10000 seconds"),
        ({"time_s": [1.0, 0.2, 2.0], "p20_s": [0.1] * 3}, "takes no time"),
        ({"reference_longest": [64, 280, 64]}, "takes no time"),
        ({"longest_s": [0.0, -0.01, 0.0]}, "cannot make a step faster"),
        ({"load_s": [0.0, -1e-9, 0.0]}, "cannot make a step faster"),
    ],
    ids=lambda value: str(value)[:30],
)
def test_what_no_measurement_gives_is_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        stairs(**changes)


def test_nobody_can_change_a_curve():
    with pytest.raises(ValueError, match="read-only"):
        stairs().time_s[0] = 5


def test_a_round_is_the_sum_of_its_parts(profile):
    curve = profile.curve
    # 9 tokens: two requests at the reference, bucket 16.
    assert curve.reference_requests([8, 9]).tolist() == [1, 2]
    step, draft = curve.step_time_s(9), curve.draft_time_s(2)
    greedy, sampled = curve.verification_time_s(2, 9), curve.verification_time_s(2, 9, sampled=True)
    np.testing.assert_allclose(sampled, 10 * greedy)
    np.testing.assert_allclose(greedy, 1e-4 * 10)
    np.testing.assert_allclose(curve.round_time_s(9), step + draft + greedy)
    np.testing.assert_allclose(curve.round_time_s(9, drafts=False, sampled=True), step + sampled)
    many = curve.round_time_s([9, 9], num_requests=[4, 2], kv_tokens=[20000, 521])
    assert many[0] > many[1]
    np.testing.assert_allclose(curve.steps_per_s([9, 32]), 1 / curve.step_time_s([9, 32]))
    np.testing.assert_allclose(curve.steps_per_s(9, scope="round"), 1 / curve.round_time_s(9))
