"""Which rounds are timed, and what the planner learns from them as they land."""

from __future__ import annotations

from itertools import pairwise
from typing import Any, cast

import numpy as np
import pytest
from profile_samples import GAMMA, make_profile

from dspark.engine.flights import Flight
from dspark.engine.orders import RoundOrder
from dspark.engine.round_marks import RoundMarks
from dspark.engine.round_meter import LandedRound, RoundMeter
from dspark.engine.scheduler.planner import RoundPlanner
from dspark.engine.scheduler.round_time import PartTimes, RoundClock, RoundLoad


class Marks:
    """Of a round whose parts took so long."""

    def __init__(self, parts: PartTimes) -> None:
        self._parts = parts

    def parts(self) -> PartTimes:
        return self._parts

    def gap_s(self, later: Any) -> float:
        return 0.0


def flight_of(order: RoundOrder, parts: PartTimes) -> Flight:
    """Of nothing but what a meter looks at."""
    marks, rows = cast(RoundMarks, Marks(parts)), np.arange(len(order.lengths))
    return Flight(rows, rows, cast(Any, None), order, bucket=8, draft=None, marks=marks, follows_a_round=True)


@pytest.mark.parametrize("requests", [[3], [1, 3, 2]], ids=["steady", "arrivals and departures"])
def test_a_block_is_measured_against_the_requests_that_it_was_drafted_for(requests: list[int]) -> None:
    curve = make_profile(0.0).curve
    planner = RoundPlanner(RoundClock(curve), gamma=GAMMA)
    meter = RoundMeter(planner, None, every=True)
    for i in range(200):
        n = requests[i % len(requests)]
        load = RoundLoad(n, 300 * n)
        plan = planner.plan(np.zeros((n, GAMMA), dtype=np.int32), np.full(n, GAMMA), load)
        # Drafting takes half as long again as the curve says of this round's requests, other parts what it says.
        draft_s = 1.5 * float(curve.draft_time_s(n, n * (300 + GAMMA)))
        parts = PartTimes(target_s=plan.curve.target_s, verify_s=plan.curve.verify_s, draft_s=draft_s)
        order = RoundOrder(GAMMA, np.full(n, GAMMA), budget=plan.budget, plan=plan)
        meter.landed(flight_of(order, parts), LandedRound(n, n, plan.num_tokens, 0, n, 0))
    for n in requests:
        expected = planner.plan(
            np.zeros((n, GAMMA), dtype=np.int32), np.full(n, GAMMA), RoundLoad(n, 300 * n)
        ).expected.draft_s
        assert expected == pytest.approx(1.5 * float(curve.draft_time_s(n, n * (300 + GAMMA))), rel=0.02)


def test_a_round_without_a_block_says_nothing_of_drafting() -> None:
    curve = make_profile(0.0).curve
    planner, load = RoundPlanner(RoundClock(curve), gamma=GAMMA), RoundLoad(2, 600)
    meter = RoundMeter(planner, None, every=True)
    before = planner.clock.draft_s(load, GAMMA)
    for _ in range(50):
        plan = planner.plan(np.zeros((2, GAMMA), dtype=np.int32), np.zeros(2, dtype=int), load)
        order = RoundOrder(0, np.zeros(2, dtype=int), budget=0, plan=plan)
        parts = PartTimes(target_s=plan.curve.target_s, verify_s=plan.curve.verify_s, draft_s=1.0)
        meter.landed(flight_of(order, parts), LandedRound(2, 2, 2, 0, 2, 0))
    assert planner.clock.draft_s(load, GAMMA) == before


def timed(*, every: bool) -> list[bool]:
    meter = RoundMeter(None, lambda round: None, every=every)
    return [meter.times(index) for index in range(200)]


def test_the_first_round_is_never_timed() -> None:
    assert not timed(every=True)[0]
    assert all(timed(every=True)[1:])


def test_behind_the_first_rounds_a_sample_of_consecutive_ones_is_timed() -> None:
    rounds = timed(every=False)
    assert all(rounds[1:64])
    later = rounds[64:]
    assert 0.04 < sum(later) / len(later) < 0.1
    # What the device waited for between two rounds is known only where both were timed.
    assert sum(a and b for a, b in pairwise(later)) >= sum(later) / 2


@pytest.mark.parametrize("every", [False, True])
def test_rounds_that_nobody_asks_about_are_not_timed(every: bool) -> None:
    assert not any(RoundMeter(None, None, every=every).times(index) for index in range(100))
