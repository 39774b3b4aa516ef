"""Look-ups: by the bucket that will run, at the load that there is."""

from __future__ import annotations

import numpy as np
import pytest

from dspark.profiles import TARGET, Measurement, ProfileError, Staircase, StepCurve


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
        "reference_requests": [1, 2, 4],
        "request_s": [0.0, 0.1, 0.0],
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
    np.testing.assert_allclose(curve.time_at([9, 9, 16, 1], requests=[2, 1, 16, 8]), [3.0, 2.9, 4.4, 1.0])
    np.testing.assert_allclose(curve.time_at([9, 10], 1200, longest=14, requests=[2, 5]), [3.5, 3.8])


@pytest.mark.parametrize("longest", [None, 64, 100], ids=str)
@pytest.mark.parametrize("requests", [None, 1, 7], ids=str)
def test_times_of_one_bucket_lie_on_a_line(longest, requests):
    curve, counts = stairs(), [3, 9, 16, 30]
    unloaded, slope = curve.line_at(counts, longest=longest, requests=requests)
    for load in (0, 150, 5000):
        expected = curve.time_at(counts, load, longest=longest, requests=requests)
        np.testing.assert_allclose(unloaded + load * slope, expected)


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
        ({"reference_requests": [1, 25, 4]}, "takes no time"),
        ({"longest_s": [0.0, -0.01, 0.0]}, "cannot make a step faster"),
        ({"request_s": [0.0, 0.0, -0.01]}, "cannot make a step faster"),
        ({"reference_requests": [1, 2, -4]}, "cannot make a step faster"),
        ({"reference_requests": [1, 2.5, 4]}, "reference_requests is no list of whole numbers"),
        ({"request_s": [0.0, 0.1]}, "one value a bucket"),
        ({"request_s": [2e4, 0.1, 0.0], "reference_requests": [0, 2, 4]}, r"request_s\[0\] is 20000, not at most 1e4"),
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


def blocks(time_s):
    """Two and four requests, behind 100 visible tokens each; 1 us a visible token."""
    loads = {"reference_load": [200, 400], "load_s": [1e-6, 1e-6], "reference_longest": [0, 0], "longest_s": [0, 0]}
    loads |= {"reference_requests": [0, 0], "request_s": [0, 0]}
    return stairs(unit="requests", buckets=[2, 4], time_s=time_s, p20_s=time_s, p80_s=time_s, **loads)


def with_blocks(profile, **drafts):
    """The profile's curve with staircases of a drafter of seven tokens."""
    named = {name: getattr(profile.curve, name) for name in StepCurve.__dataclass_fields__}
    return StepCurve(**(named | drafts))


def test_a_step_of_more_requests_takes_longer(profile):
    curve = with_blocks(profile, target=stairs())
    # Bucket 16: 3 s for 200 visible tokens of two requests, 0.1 s for each request more.
    assert float(curve.step_time_s(9)) == float(curve.step_time_s(9, num_requests=2)) == 3.0
    np.testing.assert_allclose(curve.step_time_s([9, 9], 1200, num_requests=[2, 7]), [4.0, 4.5])
    np.testing.assert_allclose(curve.step_lines([9, 12], num_requests=7)[0], 3.3)
    rounds = curve.round_time_s(9, num_requests=[2, 4], kv_tokens=200, longest_context=64, drafts=False)
    verify = curve.verification_time_s([2, 4], 9)
    np.testing.assert_allclose(rounds - verify, [3.0, 3.2])
    point = Measurement(TARGET, 16, 12, 5, 45, 237, False, (1.0,))
    assert curve.predict(point) == pytest.approx(3.0 + 37 * 0.001 - 16 * 0.01 + 3 * 0.1)


WHOLE, ONE, SAMPLED, SAMPLED_ONE = ([0.010, 0.020], [0.004, 0.008], [0.016, 0.032], [0.005, 0.010])


def test_a_block_takes_longer_by_the_same_for_each_of_its_tokens(profile):
    curve = with_blocks(
        profile,
        draft=blocks(WHOLE),
        draft_one=blocks(ONE),
        draft_sampled=blocks(SAMPLED),
        draft_sampled_one=blocks(SAMPLED_ONE),
    )
    for sampled, one, whole in ((False, ONE, WHOLE), (True, SAMPLED_ONE, SAMPLED)):
        for steps in range(1, 8):
            expected = [o + (w - o) * (steps - 1) / 6 for o, w in zip(one, whole, strict=True)]
            np.testing.assert_allclose(curve.draft_time_s([1, 4], steps=steps, sampled=sampled), expected)
            np.testing.assert_allclose(curve.draft_time_s(2, 1200, steps=steps, sampled=sampled), expected[0] + 0.001)
        np.testing.assert_allclose(curve.draft_time_s([1, 4], sampled=sampled), whole)
    plain = curve.round_time_s(9, drafts=False, sampled=True)
    np.testing.assert_allclose(curve.round_time_s(9, sampled=True, draft_steps=4), plain + (0.005 + 0.016) / 2)


@pytest.mark.parametrize(
    ("measured", "expected"),
    [
        ({}, [0.010, 0.010, 0.010, 0.010]),
        ({"draft_one": blocks(ONE)}, [0.010, 0.004, 0.010, 0.004]),
        ({"draft_sampled": blocks(SAMPLED)}, [0.010, 0.010, 0.016, 0.016]),
    ],
    ids=["whole greedy ones", "greedy ones", "whole ones"],
)
def test_blocks_that_were_not_measured_take_as_long_as_their_next_of_kin(profile, measured, expected):
    curve = with_blocks(profile, draft=blocks(WHOLE), **measured)
    kinds = ((7, False), (1, False), (7, True), (1, True))
    assert [float(curve.draft_time_s(1, steps=steps, sampled=sampled)) for steps, sampled in kinds] == expected


def test_behind_a_long_context_every_block_takes_longer_by_the_same(profile):
    curve = with_blocks(
        profile,
        draft=blocks(WHOLE),
        draft_one=blocks(ONE),
        draft_long=blocks([0.013, 0.023]),
        target_long=profile.curve.target,
        long_context_tokens=500,
    )
    assert float(curve.draft_time_s(2, 200, steps=1, longest_context=500)) == pytest.approx(0.004)
    assert float(curve.draft_time_s(2, 200, steps=1, longest_context=501)) == pytest.approx(0.007)
    # Never less than behind no context at all, whatever the samples say.
    faster = with_blocks(
        profile,
        draft=blocks(WHOLE),
        draft_one=blocks(ONE),
        draft_long=blocks([0.001, 0.001]),
        target_long=profile.curve.target,
        long_context_tokens=500,
    )
    assert float(faster.draft_time_s(2, 200, steps=1, longest_context=501)) == pytest.approx(0.004 - 2e-4)


@pytest.mark.parametrize("steps", [0, 8])
def test_a_block_has_no_time_for_tokens_that_it_does_not_have(profile, steps):
    with pytest.raises(ProfileError, match=f"a block of {steps} drafted tokens has no time"):
        profile.curve.draft_time_s(1, steps=steps)


@pytest.mark.parametrize(
    ("drafts", "message"),
    [
        ({"draft_one": blocks(ONE), "draft": None, "block_width": 0}, "`draft_one` has other buckets"),
        ({"draft_sampled": stairs()}, "`draft_sampled` has other buckets"),
        ({"draft": blocks(WHOLE), "draft_sampled_one": blocks(ONE)}, "one token have a time, but whole ones have none"),
    ],
    ids=["no drafter", "other buckets", "no whole ones"],
)
def test_blocks_that_do_not_belong_together_are_refused(profile, drafts, message):
    with pytest.raises(ValueError, match=message):
        with_blocks(profile, **drafts)
