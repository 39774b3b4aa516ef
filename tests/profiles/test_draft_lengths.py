"""One draft length for every number of requests, against all others tried in turn."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from profile_samples import CONTEXT, GAMMA, make_profile

from dspark.profiles import ProfileError, Staircase, StepCurve
from dspark.profiles.draft_lengths import LengthRange, best_lengths

SURVIVAL = {
    "strong": [0.95, 0.9, 0.85, 0.8, 0.75, 0.7, 0.65],
    "weak": [0.5, 0.2, 0.1, 0.04, 0.02, 0.01, 0.0],
    "useless": [0.0] * 7,
}


@pytest.fixture(scope="module")
def curve() -> StepCurve:
    return make_profile().curve


@pytest.fixture(scope="module")
def curve_of_dear_requests(curve: StepCurve) -> StepCurve:
    """Where a request costs up to a third of a step, and less beside more tokens."""
    reference_requests, request_s = np.array([1, 1, 1, 1, 2, 4]), np.array([4, 4, 4, 3, 2, 1]) * 1e-3
    return replace(curve, target=replace(curve.target, reference_requests=reference_requests, request_s=request_s))


def brute_force(curve: StepCurve, survival: list[float], requests: int, *, scope: str, sampled: bool) -> int:
    best, best_rate = 0, 0.0
    for length in range(GAMMA + 1):
        tokens = requests * (1 + length)
        if tokens > curve.max_batch_tokens:
            break
        seen = requests * CONTEXT + tokens
        time = float(curve.step_time_s(tokens, seen, num_requests=requests))
        if scope == "round":
            time += float(curve.verification_time_s(requests, tokens, sampled=sampled))
            if length:
                time += float(curve.draft_time_s(requests, requests * (CONTEXT + GAMMA)))
        rate = requests * (1 + sum(survival[:length])) / time
        if rate > best_rate:
            best, best_rate = length, rate
    return best


@pytest.mark.parametrize("sampled", [False, True], ids=["greedy", "sampled"])
@pytest.mark.parametrize("scope", ["round", "target"])
@pytest.mark.parametrize("survival", SURVIVAL.values(), ids=SURVIVAL.keys())
@pytest.mark.parametrize("of", ["curve", "curve_of_dear_requests"])
def test_equals_brute_force_at_every_number_of_requests(
    request: pytest.FixtureRequest, of: str, survival: list[float], scope: str, sampled: bool
) -> None:
    curve = request.getfixturevalue(of)
    ranges = best_lengths(curve, survival, scope=scope, sampled=sampled)
    found = {r: part.length for part in ranges for r in range(part.first, part.last + 1)}
    expected = {r: brute_force(curve, survival, r, scope=scope, sampled=sampled) for r in range(1, 5)}
    assert found == expected


def test_ranges_join_and_cover_every_number_of_requests_once(curve: StepCurve) -> None:
    ranges = best_lengths(curve, SURVIVAL["weak"])
    assert ranges[0].first == 1
    assert ranges[-1].last == 4
    for one, following in pairwise(ranges):
        assert following.first == one.last + 1
        assert following.length != one.length


def test_nothing_is_drafted_where_nothing_survives(curve: StepCurve) -> None:
    assert best_lengths(curve, SURVIVAL["useless"]) == [LengthRange(1, 4, 0)]


def test_of_equally_good_lengths_the_shortest_wins(curve: StepCurve) -> None:
    """A target step that costs the same at any size and survival that adds nothing past the first position."""
    flat = replace(curve, target=_flat(curve.target))
    assert best_lengths(flat, [0.5, *[0.0] * 6], scope="target") == [LengthRange(1, 4, 1)]


def test_a_curve_of_another_drafter_is_refused(curve: StepCurve) -> None:
    with pytest.raises(ProfileError, match="blocks of 7 drafted tokens, the survival for 2"):
        best_lengths(curve, [0.5, 0.2])
    with pytest.raises(ProfileError, match="without a drafter"):
        best_lengths(replace(curve, draft=None, block_width=0), SURVIVAL["weak"])


def _flat(stairs: Staircase) -> Staircase:
    ones = np.ones(stairs.buckets.size)
    return replace(stairs, time_s=ones, p20_s=ones, p80_s=ones, load_s=0 * ones)
