"""Round times of every batch size against one look-up at a time, and what corrections may never do."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from profile_samples import GAMMA, make_profile

from dspark.engine.scheduler.round_time import RoundClock, RoundLoad
from dspark.profiles import ProfileError, Staircase, StepCurve

CURVE = make_profile(0.0).curve


@pytest.mark.parametrize("sampled", [False, True], ids=["greedy", "sampled"])
@pytest.mark.parametrize("requests", [1, 3, 4])
def test_every_batch_size_takes_what_the_curve_says(requests: int, sampled: bool) -> None:
    load = RoundLoad(requests, 700 * requests, sampled)
    sizes = range(requests, 33)
    expected = [
        float(
            CURVE.step_time_s(size, load.context_tokens + size)
            + CURVE.verification_time_s(requests, size, sampled=sampled)
        )
        for size in sizes
    ]
    actual = RoundClock(CURVE, adapt=False).step_times_s(load, most_tokens=32)
    np.testing.assert_allclose(actual, expected, rtol=1e-12)


@pytest.mark.parametrize("requests", [1, 3, 4])
def test_requests_take_their_time_whatever_is_verified(requests: int) -> None:
    request_s = np.array([1, 2, 3, 4, 5, 6]) * 1e-3
    target = replace(CURVE.target, reference_requests=np.array([1, 1, 1, 1, 2, 4]), request_s=request_s)
    clock = RoundClock(replace(CURVE, target=target), adapt=False)
    load = RoundLoad(requests, 700 * requests)
    # CURVE, in which requests cost nothing, plus what a request costs times those that the bucket's reference has not.
    extra = {bucket: 1e-3 * (i + 1) * (requests - max(1, bucket // 8)) for i, bucket in enumerate((1, 2, 4, 8, 16, 32))}
    without = RoundClock(CURVE, adapt=False)
    expected = [extra[next(b for b in extra if b >= tokens)] for tokens in range(requests, 33)]
    found = clock.step_times_s(load, most_tokens=32) - without.step_times_s(load, most_tokens=32)
    np.testing.assert_allclose(found, expected, atol=1e-12)
    for tokens in (requests, 9, 32):
        parts, before = (c.parts(load, num_tokens=tokens, steps=0)[0] for c in (clock, without))
        assert parts.target_s - before.target_s == pytest.approx(expected[tokens - requests], abs=1e-12)
        assert parts.verify_s == before.verify_s


def test_one_batch_size() -> None:
    clock = RoundClock(CURVE, adapt=False)
    times = clock.step_times_s(RoundLoad(3, 900), most_tokens=3)
    assert times.tolist() == pytest.approx([float(CURVE.step_time_s(3, 903) + CURVE.verification_time_s(3, 3))])


def test_drafting_sees_its_own_block() -> None:
    clock = RoundClock(CURVE, adapt=False)
    load = RoundLoad(2, 600)
    assert clock.draft_s(load, GAMMA) == float(CURVE.draft_time_s(2, 600 + 2 * GAMMA))
    assert clock.parts(load, num_tokens=3, steps=0)[1].draft_s == 0


def test_long_contexts_have_their_own_times() -> None:
    def stairs(seconds: float) -> Staircase:
        time = [seconds, 2 * seconds]
        return Staircase("tokens", "visible KV tokens", [4, 8], time, time, time, *3 * ([0, 0], [0.0, 0.0]))

    curve = StepCurve(
        target=stairs(0.01),
        draft=stairs(0.001),
        verify_greedy=stairs(1e-5),
        verify_sampled=stairs(1e-5),
        tokens_per_request=4,
        block_width=3,
        reference_context_tokens=16,
        target_long=stairs(0.03),
        draft_long=stairs(0.004),
        long_context_tokens=100,
    )
    clock = RoundClock(curve, adapt=False)
    short, long = (clock.step_times_s(RoundLoad(2, 99, False, n), most_tokens=8) for n in (100, 101))
    assert short == pytest.approx([0.01 + 1e-5] * 3 + [0.02 + 1e-5] * 4)
    assert long == pytest.approx([0.03 + 1e-5] * 3 + [0.06 + 1e-5] * 4)
    assert clock.draft_s(RoundLoad(2, 99, False, 101), 3) == 0.004


def test_measurements_correct_every_part() -> None:
    clock, load = RoundClock(CURVE), RoundLoad(2, 600)
    before = clock.parts(load, num_tokens=9, steps=GAMMA)[0]
    for _ in range(300):
        clock.observe_target(9, predicted_s=before.target_s, measured_s=1.5 * before.target_s)
        clock.observe_verify(load, predicted_s=before.verify_s, measured_s=0.5 * before.verify_s)
        clock.observe_draft(load, steps=GAMMA, measured_s=2 * before.draft_s)
    curve, expected = clock.parts(load, num_tokens=9, steps=GAMMA)
    assert curve == before
    assert expected.target_s == pytest.approx(1.5 * before.target_s, rel=0.01)
    assert expected.verify_s == pytest.approx(0.5 * before.verify_s, rel=0.01)
    assert expected.draft_s == pytest.approx(2 * before.draft_s, rel=0.01)
    assert expected.round_s == pytest.approx(expected.target_s + expected.verify_s + expected.draft_s)
    # Other request counts follow, by the ratio over all of them.
    other = RoundLoad(4, 1200)
    assert clock.draft_s(other, GAMMA) > 1.5 * RoundClock(CURVE, adapt=False).draft_s(other, GAMMA)


def curve_of_lengths() -> StepCurve:
    """Blocks of one token take 2 ms, of all 8 ms, sampled ones 3 and 15."""

    def stairs(seconds: float) -> Staircase:
        assert CURVE.draft is not None
        times = np.full(len(CURVE.draft.buckets), seconds)
        return replace(CURVE.draft, time_s=times, p20_s=times, p80_s=times, load_s=0 * times, longest_s=0 * times)

    return replace(
        CURVE,
        draft=stairs(0.008),
        draft_one=stairs(0.002),
        draft_sampled=stairs(0.015),
        draft_sampled_one=stairs(0.003),
    )


def test_fewer_tokens_take_less_and_sampled_ones_more() -> None:
    clock = RoundClock(curve_of_lengths(), adapt=False)
    greedy, sampled = (RoundLoad(2, 600, sampled) for sampled in (False, True))
    assert [clock.draft_s(greedy, steps) for steps in (1, 3, 7)] == pytest.approx([0.002, 0.004, 0.008])
    assert [clock.draft_s(sampled, steps) for steps in (1, 3, 7)] == pytest.approx([0.003, 0.007, 0.015])
    curve, expected = clock.parts(sampled, num_tokens=9, steps=3)
    assert curve.draft_s == expected.draft_s == pytest.approx(0.007)


def test_each_length_of_block_is_corrected_by_its_own_measurements() -> None:
    clock, load = RoundClock(curve_of_lengths()), RoundLoad(2, 600)
    for _ in range(200):
        clock.observe_draft(load, steps=1, measured_s=0.003)
        clock.observe_draft(load, steps=7, measured_s=0.006)
    # Four samples' worth of what all of them share is left, in 32 of their own.
    for steps, ratio in ((1, 1.5), (7, 0.75)):
        own, shared = 32 / 36, 4 / 36
        low, high = (ratio**own * other**shared for other in (0.75, 1.5))
        assert low <= clock.draft_s(load, steps) / (0.002 if steps == 1 else 0.008) <= high
    # Sampled blocks run other kernels, of which nothing was measured.
    assert clock.draft_s(RoundLoad(2, 600, True), 7) == pytest.approx(0.015)


def test_without_adapting_measurements_change_nothing() -> None:
    clock, load = RoundClock(CURVE, adapt=False), RoundLoad(2, 600)
    before = clock.step_times_s(load, most_tokens=32), clock.parts(load, num_tokens=9, steps=GAMMA)
    for _ in range(50):
        clock.observe_target(9, predicted_s=1e-3, measured_s=2e-3)
        clock.observe_verify(load, predicted_s=1e-3, measured_s=2e-3)
        clock.observe_draft(load, steps=GAMMA, measured_s=2e-3)
    assert (clock.step_times_s(load, most_tokens=32) == before[0]).all()
    assert clock.parts(load, num_tokens=9, steps=GAMMA) == before[1]


def test_a_bucket_that_never_ran_gets_the_benefit_of_the_doubt() -> None:
    clock, load = RoundClock(CURVE), RoundLoad(2, 600)
    curve_s = RoundClock(CURVE, adapt=False).step_times_s(load, most_tokens=32)
    hopeful = clock.step_times_s(load, most_tokens=32)
    assert (hopeful < curve_s).all() and (hopeful > 0.94 * curve_s).all()
    for size in (2, 4, 8, 16, 32):
        predicted = clock.parts(load, num_tokens=size, steps=0)[0].target_s
        for _ in range(100):
            clock.observe_target(size, predicted_s=predicted, measured_s=predicted)
    np.testing.assert_allclose(clock.step_times_s(load, most_tokens=32), curve_s, rtol=0.01)


@given(
    samples=st.lists(st.tuples(st.sampled_from([3, 4, 8, 16, 32]), st.floats(0.01, 100)), max_size=60),
    requests=st.integers(1, 3),
)
@settings(max_examples=200, deadline=None)
def test_corrected_times_are_positive_and_never_fall_where_the_curve_does_not(
    samples: list[tuple[int, float]], requests: int
) -> None:
    clock, load = RoundClock(CURVE), RoundLoad(requests, 500)
    for size, factor in samples:
        clock.observe_target(size, predicted_s=1e-3, measured_s=factor * 1e-3)
    actual = clock.step_times_s(load, most_tokens=32)
    assert (actual > 0).all()
    # The last batch of each bucket has nearly one load: CURVE falls once, from 4 to 8 tokens.
    ends = np.array([b for b in CURVE.target.buckets if b >= requests])
    curve_s = CURVE.step_time_s(ends, 500 + 32)
    verify_s = [float(CURVE.verification_time_s(requests, end)) for end in ends]
    slopes = CURVE.target.load_s[CURVE.target.index_of(ends)] * (32 - ends)
    at_one_load = actual[ends - requests] - verify_s
    for small in range(len(ends)):
        for large in range(small + 1, len(ends)):
            allowed = min(curve_s[large] - curve_s[small], 0)
            # Their own tokens are the rest of the load, at most four times as dear as predicted.
            assert at_one_load[large] + 4 * slopes[large] >= at_one_load[small] + allowed - 1e-9


def test_a_batch_past_the_largest_bucket_is_refused() -> None:
    with pytest.raises(ProfileError, match="beyond the largest"):
        RoundClock(CURVE).step_times_s(RoundLoad(2, 600), most_tokens=33)
