"""Whatever the schedule reads, the text follows the target's own distribution, as long as it anticipates nothing."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from block_before import ReadsBlockBefore, remembering
from lossless import assert_fails, assert_fits, decode, logits, make_engine, pair, truth
from step_curves import step_curve
from toy_pair import GAMMA, ToyPair

from dspark.engine import scheduling
from dspark.engine.flights import Flight
from dspark.engine.loop import DecodeLoop
from dspark.engine.models import block_logits
from dspark.engine.models import drafter as drafter_module
from dspark.engine.scheduler.planner import RoundPlan, RoundPlanner
from dspark.engine.scheduler.policies import Planned, ScheduleView
from dspark.engine.scheduler.round_time import RoundClock
from dspark.engine.scheduler.survival import log_survival
from dspark.engine.slots import RUNNING

__all__ = ["logits", "pair", "remembering", "truth"]

COUNT = 12_000
# Batches of the planned runs: large enough that the survival of the very last blocks decides the budget.
CONCURRENCY = 256
DEPTHS = pytest.mark.parametrize("depth", [0, 1], ids=["one-by-one", "overlapped"])


class SkipsAndShortensSome(RoundPlanner):
    """Leaves out the block behind some rounds, and drafts less of it behind others, by what is known of older ones."""

    def plan(self, *args: Any, **kwargs: Any) -> RoundPlan:
        plan = super().plan(*args, **kwargs)
        steps = (0, 1, 2, GAMMA)[plan.budget % 4] if plan.budget else plan.next_steps
        return replace(plan, next_steps=steps, lasting_steps=steps)


class ProbesOften(RoundPlanner):
    """Drafts one block of all tokens behind the start of every plan, and of one or two tokens otherwise."""

    def plan(self, *args: Any, **kwargs: Any) -> RoundPlan:
        plan = super().plan(*args, **kwargs)
        return replace(plan, next_steps=GAMMA, lasting_steps=1 + plan.budget % 2, probe_budget=plan.budget)


def planner(*, causal: bool) -> RoundPlanner:
    """Of a curve with a shelf at every 16 tokens: the budget moves with what the blocks look like."""
    buckets = tuple(range(CONCURRENCY, CONCURRENCY * (1 + GAMMA) + 1, 16))
    times_s = tuple(0.01 + 1.2e-5 * (bucket - CONCURRENCY) for bucket in buckets)
    curve = step_curve(buckets, times_s, gamma=GAMMA, draft_s=1e-4)
    return SkipsAndShortensSome(RoundClock(curve, adapt=False), gamma=GAMMA, causal=causal)


@DEPTHS
@pytest.mark.parametrize("causal", [False, True], ids=["async", "causal"])
def test_planned_rounds(pair: ToyPair, truth: list[list[np.ndarray]], causal: bool, depth: int) -> None:
    """With histories, skipped and shorter drafts, preemptions, and every kind of request side by side."""
    engine = make_engine(
        pair,
        policy=Planned(causal=causal),
        planner=planner(causal=causal),
        concurrency=CONCURRENCY,
        kv_cache_tokens=CONCURRENCY * 14,
        pipeline_depth=depth,
    )
    budgets: list[float] = []
    steps: list[int] = []
    own = engine.planner.plan

    def watched(*args: Any, **kwargs: Any) -> RoundPlan:
        plan = own(*args, **kwargs)
        budgets.append(plan.budget / plan.load.num_requests)
        steps.append(plan.next_steps)
        return plan

    engine.planner.plan = watched
    assert_fits(decode(engine, 2 * COUNT), truth)
    counts = engine.stats.spec
    assert engine.stats.preemptions > 0 and all(0.05 < np.mean(np.equal(steps, n)) < 0.9 for n in range(1 + GAMMA))
    assert np.std(budgets) > 0.1 and 0.2 < counts.accepted / counts.observed < 0.95


@pytest.mark.parametrize("kind", [RoundPlanner, ProbesOften])
def test_plans_that_few_requests_keep_for_some_rounds(
    pair: ToyPair, truth: list[list[np.ndarray]], monkeypatch: pytest.MonkeyPatch, kind: type[RoundPlanner]
) -> None:
    requests = 12
    monkeypatch.setattr(scheduling, "_PLAN_LIFE_S", 0.1)
    buckets = tuple(range(requests, requests * (1 + GAMMA) + 1, 3))
    curve = step_curve(buckets, tuple(0.01 + 3e-4 * (b - requests) for b in buckets), gamma=GAMMA, draft_s=1e-4)
    engine = make_engine(
        pair,
        policy=Planned(causal=False),
        planner=kind(RoundClock(curve, adapt=False), gamma=GAMMA),
        concurrency=requests,
        kv_cache_tokens=requests * 14,
        pipeline_depth=1,
    )
    plans = 0
    own = engine.planner.plan

    def counted(*args: Any, **kwargs: Any) -> RoundPlan:
        nonlocal plans
        plans += 1
        return own(*args, **kwargs)

    engine.planner.plan = counted
    assert_fits(decode(engine, COUNT // 4), truth)
    assert engine.stats.preemptions > 0 and plans < 0.8 * engine.stats.rounds


class OneByOne(ReadsBlockBefore):
    """`async` for each request alone, as if it were the whole batch: the budget rests on its own older block."""

    # A cliff and a shelf: all of a block or nothing of it, depending on all of its positions.
    round_time_s = np.array([1.0, 1.9, 2.0, 2.02])

    def known(self, view: ScheduleView) -> np.ndarray:
        """Survival [R, G] that the budget may rest on; 1 where nothing is known."""
        survival = np.exp(log_survival(self.before.confidence_logits, view.temperatures))
        return np.where(self.before.known[:, None], survival, 1.0)

    def lengths(self, view: ScheduleView) -> np.ndarray:
        gain = np.cumsum(self.known(view), axis=1)
        worth = (1 + np.concatenate([np.zeros((len(gain), 1)), gain], axis=1)) / self.round_time_s
        return np.minimum(worth.argmax(axis=1), view.caps)


class Anticipates(OneByOne):
    """The budget rests on the block that is verified, so that a drafted token decides over its own admission."""

    def known(self, view: ScheduleView) -> np.ndarray:
        return np.exp(log_survival(view.confidence_logits, view.temperatures))


@DEPTHS
def test_each_request_by_itself(pair: ToyPair, truth: list[list[np.ndarray]], depth: int) -> None:
    engine = make_engine(pair, policy=OneByOne(), pipeline_depth=depth)
    assert_fits(decode(engine, 2 * COUNT), truth)
    assert 0.1 < engine.stats.spec.verified / engine.stats.spec.drafted < 0.9


# The faults below bias the text without any other sign of it. Each test puts one in and shows that the fit notices.


def test_notices_a_budget_that_rests_on_the_block_it_is_spent_on(pair: ToyPair, truth: list[list[np.ndarray]]) -> None:
    assert_fails(decode(make_engine(pair, policy=Anticipates()), COUNT), truth)


def test_notices_draft_noise_keyed_by_position_alone(
    pair: ToyPair, truth: list[list[np.ndarray]], monkeypatch: pytest.MonkeyPatch
) -> None:
    own = block_logits.markov_step

    def keyed_by_position(*args: Any, noise: Any, **kwargs: Any) -> Any:
        noise = replace(noise, generations=torch.zeros_like(noise.generations))
        return own(*args, noise=noise, **kwargs)

    monkeypatch.setattr(block_logits, "markov_step", keyed_by_position)
    # Only what lies behind a rejection is drafted again, so this takes more texts to see than the others.
    assert_fails(decode(make_engine(pair, policy=OneByOne()), 4 * COUNT), truth)


def test_notices_a_confidence_that_is_the_drafted_tokens_own_probability(
    pair: ToyPair, truth: list[list[np.ndarray]], monkeypatch: pytest.MonkeyPatch
) -> None:
    own = drafter_module.Drafter.draft

    def headless(self: Any, block: Any, cache: Any, **kwargs: Any) -> Any:
        output = own(self, block, cache, **kwargs)
        warm = torch.where(block.temperature > 0, block.temperature, 1.0)[:, None, None]
        q = torch.softmax(output.logits / warm, dim=-1).gather(-1, output.tokens[..., None])[..., 0]
        output.confidence_logits.copy_(torch.logit(q, eps=1e-6))
        return output

    monkeypatch.setattr(drafter_module.Drafter, "draft", headless)
    assert_fails(decode(make_engine(pair, policy="threshold:0.5"), COUNT), truth)


def test_notices_preemption_that_looks_at_the_lengths_of_the_round(
    pair: ToyPair, truth: list[list[np.ndarray]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Requests whose block is little worth make room, and draft another one when they come back.

    A length of 0 says nothing: the first position's confidence is older than the block.
    """

    def launch(loop: DecodeLoop) -> bool:
        slots, runner = loop.slots, loop._runner
        rows = slots.of_status(RUNNING)
        if not rows.size:
            return False
        order = loop._scheduler.order(rows)
        draft = None
        if order.steps:
            slots.generation[rows] += 1
            draft = runner.draft(rows, order)
            order = loop._scheduler.revise(rows, order, draft)
            goes = (order.lengths == 1) & (slots.most_left(rows) > 2)
            goes &= ~goes.all()
            for slot in rows[goes].tolist():
                loop.pool.release(slot)
                slots.preempt(slot)
            rows, order = rows[~goes], replace(order, lengths=order.lengths[~goes])
            stays = torch.from_numpy(~goes)
            draft = replace(
                draft,
                tokens=draft.tokens[stays],
                logits=draft.logits[stays],
                confidence_logits=draft.confidence_logits[stays],
            )
        launched = runner.verify(rows, order, draft)
        flight = Flight(rows, slots.serial[rows], launched.result, order, launched.bucket, draft, None, False)
        loop._flights.append(flight)
        slots.launch(rows, flight.most_ahead)
        return True

    monkeypatch.setattr(DecodeLoop, "_launch_round", launch)
    assert_fails(decode(make_engine(pair, policy="threshold:0.4", concurrency=1024), COUNT // 20), truth)
