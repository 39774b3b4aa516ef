"""Plans that go for several rounds: for how long, what replaces them, and which blocks are learnt from meanwhile."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from fixture_engine import prompts, reference, requests, texts
from planned_engine import CONCURRENCY, CURVE, DEPTHS, GAMMA, planned_engine, watched_orders
from step_curves import step_curve

from dspark.engine import Request, SamplingParams, scheduling
from dspark.engine.scheduler.block_gains import BlockGains
from dspark.engine.scheduler.planner import RoundPlan, RoundPlanner
from dspark.engine.scheduler.round_time import RoundClock
from dspark.engine.scheduling import AsyncScheduler

PLANNING = ((AsyncScheduler, "order"), (AsyncScheduler, "look_ahead"), (RoundPlanner, "plan"))


def noted_calls(monkeypatch: pytest.MonkeyPatch, *methods: tuple[type, str]) -> list[str]:
    """Names of those methods, as their calls begin."""
    happened: list[str] = []

    def noted(own: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            happened.append(own.__name__)
            return own(*args, **kwargs)

        return call

    for owner, name in methods:
        monkeypatch.setattr(owner, name, noted(getattr(owner, name)))
    return happened


def learnt_blocks(monkeypatch: pytest.MonkeyPatch) -> list[np.ndarray]:
    """Hazards [R, k] of the blocks that planners learn from, round by round."""
    learnt: list[np.ndarray] = []
    own = BlockGains.take_in

    def take_in(gains: BlockGains, seen: np.ndarray) -> None:
        learnt.append(seen)
        own(gains, seen)

    monkeypatch.setattr(BlockGains, "take_in", take_in)
    return learnt


@DEPTHS
def test_a_plan_is_kept_for_some_rounds_of_about_as_many_requests(depth: int, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = planned_engine(causal=False, depth=depth)
    # Up to fifteen of the curve's fastest rounds.
    monkeypatch.setattr(scheduling, "_PLAN_LIFE_S", 0.15)
    orders = watched_orders(monkeypatch)
    assert texts(engine.generate(requests(ignore_eos=True))) == reference("dspark_rnn")
    assert all(0 <= order.budget <= order.lengths.sum() for order in orders)
    runs = [(plan, list(same)) for plan, same in itertools.groupby(orders, key=lambda order: order.plan)]
    for plan, same in runs:
        if plan is None:
            # Of a quarter more or fewer requests than the plan before, and for as long as the next one takes.
            assert max(Counter(len(o.lengths) for o in same).values()) <= 2
        else:
            assert all((len(o.lengths), o.budget) == (plan.load.num_requests, plan.budget) for o in same)
    longest = max(len(same) for plan, same in runs if plan is not None)
    assert 2 <= longest <= 16
    assert any(plan is None for plan, _ in runs)
    assert len(runs) < 0.7 * len(orders)


@DEPTHS
def test_a_kept_plan_is_replaced_behind_a_launch(depth: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """There the device has work, and in front of a launch it may have none."""
    engine = planned_engine(causal=False, depth=depth)
    monkeypatch.setattr(scheduling, "_PLAN_LIFE_S", 0.05)
    happened = noted_calls(monkeypatch, *PLANNING)
    # All alike, so that little but its age ends a plan.
    asked = [Request(i, prompts()[0], SamplingParams(max_tokens=80, ignore_eos=True)) for i in range(2 * CONCURRENCY)]
    list(engine.generate(asked))
    pairs = list(itertools.pairwise(happened))
    # Before the first of them every round is planned, to learn what blocks are worth.
    steady = pairs[pairs.index(("look_ahead", "plan")) :]
    assert steady.count(("look_ahead", "plan")) > 5 > steady.count(("order", "plan"))


@DEPTHS
def test_requests_one_after_the_other_keep_a_plan_and_tell_of_some_blocks_meanwhile(
    depth: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = planned_engine(causal=False, depth=depth, concurrency=1)
    monkeypatch.setattr(scheduling, "_PLAN_LIFE_S", 0.15)
    happened = noted_calls(monkeypatch, *PLANNING, (BlockGains, "take_in"))
    orders = watched_orders(monkeypatch)
    asked = [Request(i, prompt, SamplingParams(max_tokens=40, ignore_eos=True)) for i, prompt in enumerate(prompts())]
    list(engine.generate(asked))
    # Every round is planned until 32 blocks were seen.
    launches = [name for name in happened if name != "take_in"]
    pairs = list(itertools.pairwise(launches))
    steady = pairs[pairs.index(("look_ahead", "plan")) :]
    rounds = sum(first == "order" for first, _ in steady)
    assert rounds > 50 and steady.count(("order", "plan")) < 0.1 * rounds
    # Looked at more often than plans end, and far from always.
    assert 2 * steady.count(("look_ahead", "plan")) < happened[-len(steady) :].count("take_in") < 0.4 * rounds
    # What a plan for the last tokens of a request verifies is not for the next one.
    whole = [order for order in orders[40:] if order.lengths.min(initial=GAMMA) == GAMMA]
    assert np.mean([order.budget for order in whole]) > 0.9 * max(order.budget for order in whole)


class ProbesAlways(RoundPlanner):
    """Every plan asks for one whole block, and for single tokens behind it."""

    def plan(self, *args: Any, **kwargs: Any) -> RoundPlan:
        return replace(super().plan(*args, **kwargs), next_steps=GAMMA, lasting_steps=1, probe_budget=3)


@DEPTHS
@pytest.mark.parametrize("requests_at_once", [1, CONCURRENCY])
def test_a_probe_is_drafted_and_learnt_from_while_its_plan_is_kept(
    depth: int, requests_at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Planning anew in front of its launches would have the device wait."""
    monkeypatch.setattr(scheduling, "_PLAN_LIFE_S", 0.15)
    happened, learnt = noted_calls(monkeypatch, *PLANNING), learnt_blocks(monkeypatch)
    orders = watched_orders(monkeypatch)
    planner = ProbesAlways(RoundClock(step_curve(*CURVE, gamma=GAMMA), adapt=False), gamma=GAMMA)
    engine = planned_engine(causal=False, depth=depth, concurrency=requests_at_once, planner=planner)
    asked = [Request(i, prompts()[0], SamplingParams(max_tokens=100, ignore_eos=True)) for i in range(3 * CONCURRENCY)]
    list(engine.generate(asked))
    pairs = list(itertools.pairwise(happened))
    steady = pairs[pairs.index(("look_ahead", "plan")) :]
    plans = steady.count(("look_ahead", "plan"))
    assert plans > 5 and steady.count(("order", "plan")) < 0.5 * plans
    probes = [order for order in orders if order.steps == GAMMA and order.plan is None]
    assert 0.8 * plans <= len(probes) < 0.5 * len(orders) and {o.steps for o in orders} <= {0, 1, GAMMA}
    assert all(order.budget <= 3 for order in probes)
    assert sum(blocks.shape[1] == GAMMA for blocks in learnt) >= 0.8 * len(probes)


@DEPTHS
def test_rounds_that_are_longer_than_a_plan_lives_are_planned_each(depth: int, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = planned_engine(causal=False, depth=depth)
    orders = watched_orders(monkeypatch)
    assert texts(engine.generate(requests(ignore_eos=True))) == reference("dspark_rnn")
    assert len({id(order.plan) for order in orders}) == len(orders)


@DEPTHS
def test_no_block_is_learnt_from_twice(depth: int, monkeypatch: pytest.MonkeyPatch) -> None:
    learnt = learnt_blocks(monkeypatch)
    monkeypatch.setattr(scheduling, "_PLAN_LIFE_S", 0.15)
    engine = planned_engine(causal=False, depth=depth)
    # Of many lengths, so that plans are often given up before their time.
    asked = [
        Request(i, prompt, SamplingParams(max_tokens=20 + 7 * i, ignore_eos=True)) for i, prompt in enumerate(prompts())
    ]
    list(engine.generate(asked))
    each = [block.tobytes() for blocks in learnt for block in blocks]
    assert len(set(each)) == len(each) > 60


@DEPTHS
@pytest.mark.parametrize("life_s", [0.02, 0.15], ids=["kept-briefly", "kept-long"])
def test_the_planner_is_told_of_every_round_once(depth: int, life_s: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """What goes into drafting for information alone is a share of the rounds that it is told of."""
    told: list[int] = []
    own = RoundPlanner.plan

    def plan(planner: RoundPlanner, *args: Any, rounds: int, **kwargs: Any) -> RoundPlan:
        told.append(rounds)
        return own(planner, *args, rounds=rounds, **kwargs)

    monkeypatch.setattr(RoundPlanner, "plan", plan)
    monkeypatch.setattr(scheduling, "_PLAN_LIFE_S", life_s)
    engine = planned_engine(causal=False, depth=depth)
    orders = watched_orders(monkeypatch)
    asked = [Request(i, prompts()[0], SamplingParams(max_tokens=80, ignore_eos=True)) for i in range(2 * CONCURRENCY)]
    list(engine.generate(asked))
    assert min(told) == 1 and len(told) < 0.7 * len(orders)
    # All but those that the newest plan is kept for.
    assert len(orders) - life_s / CURVE[1][0] - 1 <= sum(told) <= len(orders)
