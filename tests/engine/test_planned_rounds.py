"""Rounds planned by a step curve: the text stays the target's, and the plan is what is verified."""

from __future__ import annotations

import itertools
from collections import Counter
from dataclasses import replace
from itertools import cycle
from typing import Any

import numpy as np
import pytest
from fixture_engine import FIXTURES, Detokenizer, prompts, reference, requests, texts
from graph_engine import graph_device
from step_curves import make_planner, step_curve

from dspark.engine import Engine, EngineConfig, Request, SamplingParams, scheduling
from dspark.engine.graphs.capture import GraphCapture
from dspark.engine.graphs.decode_graphs import DecodeGraphs
from dspark.engine.round_meter import RoundMetrics
from dspark.engine.scheduler.block_gains import BlockGains
from dspark.engine.scheduler.planner import RoundPlan, RoundPlanner
from dspark.engine.scheduler.policies import Planned
from dspark.engine.scheduler.round_time import RoundClock
from dspark.engine.scheduling import AsyncScheduler

__all__ = ["graph_device"]

GAMMA, CONCURRENCY = 7, 6
MOST = CONCURRENCY * (1 + GAMMA)
# Two shelves with a cliff between them: what is worth verifying changes from round to round.
CURVE = ((6, 20, MOST), (0.010, 0.013, 0.024))
DEPTHS = pytest.mark.parametrize("depth", [0, 1], ids=["one-by-one", "overlapped"])
KINDS = pytest.mark.parametrize("causal", [False, True], ids=["async", "causal"])


class BlocksOfAllLengths(RoundPlanner):
    """Drafts blocks of other lengths round by round, whatever they are worth."""

    def __init__(self, *, causal: bool, lengths: tuple[int, ...] = (3, 1, GAMMA, 0, 1, 5)) -> None:
        super().__init__(RoundClock(step_curve(*CURVE, gamma=GAMMA), adapt=False), gamma=GAMMA, causal=causal)
        self._steps = cycle(lengths)

    def plan(self, *args: Any, **kwargs: Any) -> RoundPlan:
        return replace(super().plan(*args, **kwargs), next_steps=next(self._steps))


def planned_engine(
    *,
    causal: bool,
    depth: int,
    device: str = "cpu",
    graphs: bool = False,
    draft_s: float = 1e-3,
    planner: RoundPlanner | None = None,
    **options: Any,
) -> Engine:
    folder = FIXTURES / "dspark_rnn"
    detokenizer = options.pop("detokenizer", None)
    settings: dict[str, Any] = {"concurrency": CONCURRENCY, "page_size": 4, "pipeline_depth": depth, "dtype": "float32"}
    config = EngineConfig(
        target=str(folder / "target"), drafter=str(folder / "draft"), device=device, graphs=graphs, **settings | options
    )
    engine = Engine(
        config,
        policy=Planned(causal=causal),
        planner=planner or make_planner(*CURVE, gamma=GAMMA, causal=causal, draft_s=draft_s),
        detokenizer=detokenizer,
    )
    if graphs and device == "cpu":
        engine.graphs = DecodeGraphs(engine, engine.graph_sizes, drafter=engine.drafter)
    return engine


@KINDS
@DEPTHS
@pytest.mark.parametrize("config", [{}, {"kv_cache_tokens": 160, "max_context": 100}], ids=["roomy", "preempting"])
def test_greedy_text_is_the_targets(causal: bool, depth: int, config: dict[str, Any]) -> None:
    engine = planned_engine(causal=causal, depth=depth, **config)
    assert texts(engine.generate(requests())) == reference("dspark_rnn")
    assert (engine.stats.preemptions > 0) == bool(config)
    counts = engine.stats.spec
    # Neither all of every block nor nothing of any.
    assert 0 < counts.verified < 0.9 * counts.drafted


@KINDS
@DEPTHS
def test_graphs_plan_and_allocate_like_calls(graph_device: str, causal: bool, depth: int) -> None:
    asked = [
        Request(i, prompt, SamplingParams(max_tokens=30, temperature=float(i % 2)))
        for i, prompt in enumerate(prompts())
    ]
    found = []
    for graphs in (True, False):
        engine = planned_engine(
            causal=causal, depth=depth, device=graph_device, graphs=graphs, detokenizer=Detokenizer(7)
        )
        found.append({c.index: c for c in engine.generate(asked)})
    if graph_device == "cpu":
        assert found[0] == found[1]
    for index, completion in found[0].items():
        if index % 2 == 0:
            assert completion.token_ids == found[1][index].token_ids


@KINDS
@DEPTHS
@pytest.mark.parametrize("graphs", [True, False], ids=["graphs", "eager"])
def test_greedy_text_does_not_depend_on_how_much_is_drafted(
    graph_device: str, graphs: bool, causal: bool, depth: int
) -> None:
    planner = BlocksOfAllLengths(causal=causal)
    engine = planned_engine(causal=causal, depth=depth, device=graph_device, graphs=graphs, planner=planner)
    assert texts(engine.generate(requests())) == reference("dspark_rnn")
    counts = engine.stats.spec
    assert 0 < counts.verified < counts.drafted < 0.6 * GAMMA * CONCURRENCY * engine.stats.rounds


@KINDS
@pytest.mark.parametrize("options", [{}, {"draft_top_k": 5}, {"acceptance": "coupled"}], ids=str)
def test_graphs_draft_and_verify_blocks_of_every_length_like_calls(
    graph_device: str, causal: bool, options: dict[str, Any]
) -> None:
    asked = [
        Request(i, prompt, SamplingParams(max_tokens=30, temperature=(0.0, 0.7, 1.3)[i % 3], top_k=i % 2 * 30))
        for i, prompt in enumerate(prompts())
    ]
    found = []
    for graphs in (True, False):
        planner = BlocksOfAllLengths(causal=causal)
        engine = planned_engine(causal=causal, depth=1, device=graph_device, graphs=graphs, planner=planner, **options)
        found.append({c.index: (c.token_ids, c.counts) for c in engine.generate(asked)})
        # Some of each length pass, or q of a shorter block was looked for where that of a longer one lies.
        assert engine.stats.spec.accepted > 0.2 * engine.stats.spec.verified > 0
    if graph_device == "cpu":
        assert found[0] == found[1]
    for index in range(0, len(asked), 3):
        assert found[0][index][0] == found[1][index][0]


@pytest.mark.parametrize("temperature", [0.0, 1.0], ids=["greedy", "sampled"])
def test_blocks_of_another_length_find_their_graphs_there(
    graph_device: str, temperature: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    captured: list[str] = []
    own = GraphCapture.capture

    def capture(self: GraphCapture, run: Any, *, name: str) -> Any:
        captured.append(name)
        return own(self, run, name=name)

    monkeypatch.setattr(GraphCapture, "capture", capture)
    planner = BlocksOfAllLengths(causal=False, lengths=(GAMMA, GAMMA, 3, 1))
    engine = planned_engine(causal=False, depth=1, device=graph_device, graphs=True, planner=planner)
    if graph_device == "cpu":
        assert engine.graphs is not None
        engine.graphs.capture_all()
    at_start = len(captured)
    asked = [Request(0, prompts()[0], SamplingParams(max_tokens=40, temperature=temperature, ignore_eos=True))]
    list(engine.generate(asked))
    later = [name for name in captured[at_start:] if "prompt" not in name]
    # Nothing for greedy requests; for sampled ones all lengths of a kind one after the other, before the next kind.
    kinds = [name.split()[1] for name in later if "target" not in name]
    assert kinds == ([] if temperature == 0 else ["drafting"] * 3 + ["verification"] * 3)


@KINDS
@DEPTHS
def test_every_round_is_told_of(causal: bool, depth: int) -> None:
    engine = planned_engine(causal=causal, depth=depth)
    told: list[RoundMetrics] = []
    engine.round_listener = told.append
    done = list(engine.generate(requests()))
    assert len(told) == engine.stats.rounds
    assert sum(r.emitted for r in told) == sum(len(c.token_ids) - 1 for c in done)
    if depth == 0:
        # Else some rounds are launched for requests that turn out to have finished.
        assert sum(r.batch_tokens - r.requests for r in told) == engine.stats.spec.verified
    for r in told:
        assert r.expected_tokens is not None
        assert r.requests - 1e-9 <= r.expected_tokens <= r.requests * (1 + GAMMA) + 1e-9
        # One of the shelves, verification, and drafting or none.
        assert r.predicted_s in [pytest.approx(shelf + rest) for shelf in CURVE[1] for rest in (1e-4, 1.1e-3)]
        # Finished requests and last tokens may leave a batch smaller than planned, never larger.
        assert r.batch_tokens <= MOST
    measured = [r.measured_s for r in told]
    assert measured[0] is None and all(s is not None and s > 0 for s in measured[1:])


@KINDS
@DEPTHS
def test_a_drafter_that_costs_too_much_is_left_alone(causal: bool, depth: int) -> None:
    engine = planned_engine(causal=causal, depth=depth, draft_s=1.0)
    assert texts(engine.generate(requests())) == reference("dspark_rnn")
    counts = engine.stats.spec
    # It is tried, and tried again when the number of requests changes, but most rounds go without.
    assert 0 < counts.drafted < 0.5 * GAMMA * counts.rounds


@DEPTHS
def test_a_batch_never_exceeds_its_budget(depth: int, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = planned_engine(causal=False, depth=depth)
    orders, sizes = watched_orders(monkeypatch), []
    target_step = engine.target_step

    def watched_step(batch: Any, *, logit_rows: Any = None, logits_out: Any = None) -> Any:
        if logit_rows is None:
            sizes.append(len(batch.token_ids))
        return target_step(batch, logit_rows=logit_rows, logits_out=logits_out)

    engine.target_step = watched_step  # type: ignore[method-assign]
    asked = requests(ignore_eos=True)
    assert texts(engine.generate(asked)) == reference("dspark_rnn")
    # Nothing runs in a last round whose requests turn out to have finished.
    assert len(sizes) in (len(orders), len(orders) - 1)
    budgets = [order.plan.num_tokens for order in orders[: len(sizes)]]
    assert (np.array(sizes) <= np.array(budgets)).all() and np.mean(np.array(sizes) == np.array(budgets)) > 0.7


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
    happened: list[str] = []
    for owner, name in ((AsyncScheduler, "order"), (AsyncScheduler, "look_ahead"), (RoundPlanner, "plan")):
        note_calls(monkeypatch, owner, name, happened)
    # All alike, so that little but its age ends a plan.
    asked = [Request(i, prompts()[0], SamplingParams(max_tokens=80, ignore_eos=True)) for i in range(2 * CONCURRENCY)]
    list(engine.generate(asked))
    pairs = list(itertools.pairwise(happened))
    # Before the first of them every round is planned, to learn what blocks are worth.
    steady = pairs[pairs.index(("look_ahead", "plan")) :]
    assert steady.count(("look_ahead", "plan")) > 5 > steady.count(("order", "plan"))


@DEPTHS
def test_requests_one_after_the_other_keep_a_plan_and_tell_of_most_blocks(
    depth: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = planned_engine(causal=False, depth=depth, concurrency=1)
    monkeypatch.setattr(scheduling, "_PLAN_LIFE_S", 0.05)
    happened: list[str] = []
    for owner, name in (
        *((AsyncScheduler, "order"), (AsyncScheduler, "look_ahead")),
        *((RoundPlanner, "plan"), (BlockGains, "take_in")),
    ):
        note_calls(monkeypatch, owner, name, happened)
    orders = watched_orders(monkeypatch)
    asked = [Request(i, prompt, SamplingParams(max_tokens=40, ignore_eos=True)) for i, prompt in enumerate(prompts())]
    list(engine.generate(asked))
    pairs = list(itertools.pairwise(happened))
    # Every round is planned until 32 blocks were seen.
    steady = pairs[pairs.index(("look_ahead", "plan")) :]
    rounds = sum(first == "order" for first, _ in steady)
    assert rounds > 50 and steady.count(("order", "plan")) < 0.1 * rounds
    # One is looked at while the one before is on its way.
    assert 0.35 * rounds < sum(first == "take_in" for first, _ in steady) < 0.6 * rounds
    # What a plan for the last tokens of a request verifies is not for the next one.
    whole = [order for order in orders[40:] if order.lengths.min(initial=GAMMA) == GAMMA]
    assert np.mean([order.budget for order in whole]) > 0.9 * max(order.budget for order in whole)


@DEPTHS
def test_rounds_that_are_longer_than_a_plan_lives_are_planned_each(depth: int, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = planned_engine(causal=False, depth=depth)
    orders = watched_orders(monkeypatch)
    assert texts(engine.generate(requests(ignore_eos=True))) == reference("dspark_rnn")
    assert len({id(order.plan) for order in orders}) == len(orders)


@DEPTHS
def test_no_block_is_learnt_from_twice(depth: int, monkeypatch: pytest.MonkeyPatch) -> None:
    learnt: list[np.ndarray] = []
    own = BlockGains.take_in

    def take_in(gains: BlockGains, seen: np.ndarray) -> None:
        learnt.extend(seen)
        own(gains, seen)

    monkeypatch.setattr(BlockGains, "take_in", take_in)
    monkeypatch.setattr(scheduling, "_PLAN_LIFE_S", 0.15)
    engine = planned_engine(causal=False, depth=depth)
    # Of many lengths, so that plans are often given up before their time.
    asked = [
        Request(i, prompt, SamplingParams(max_tokens=20 + 7 * i, ignore_eos=True)) for i, prompt in enumerate(prompts())
    ]
    list(engine.generate(asked))
    assert len({block.tobytes() for block in learnt}) == len(learnt) > 60


def watched_orders(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Orders of a planned scheduler, as they are given."""
    orders: list[Any] = []
    own = AsyncScheduler.order

    def order(scheduler: AsyncScheduler, rows: np.ndarray) -> Any:
        orders.append(own(scheduler, rows))
        return orders[-1]

    monkeypatch.setattr(AsyncScheduler, "order", order)
    return orders


def note_calls(monkeypatch: pytest.MonkeyPatch, owner: type, name: str, happened: list[str]) -> None:
    """Have `happened` tell of every call of that method, as it begins."""
    own = getattr(owner, name)

    def noted(*args: Any, **kwargs: Any) -> Any:
        happened.append(name)
        return own(*args, **kwargs)

    monkeypatch.setattr(owner, name, noted)
