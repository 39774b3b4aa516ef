"""Rounds planned by a step curve: the text stays the target's, and the plan is what is verified."""

from __future__ import annotations

from dataclasses import replace
from itertools import cycle
from typing import Any

import numpy as np
import pytest
from fixture_engine import Detokenizer, prompts, reference, requests, texts
from graph_engine import graph_device
from planned_engine import CONCURRENCY, CURVE, DEPTHS, GAMMA, MOST, planned_engine, watched_orders
from step_curves import step_curve

from dspark.engine import Request, SamplingParams
from dspark.engine.graphs.capture import GraphCapture
from dspark.engine.round_meter import RoundMetrics
from dspark.engine.scheduler.planner import RoundPlan, RoundPlanner
from dspark.engine.scheduler.round_time import RoundClock

__all__ = ["graph_device"]

KINDS = pytest.mark.parametrize("causal", [False, True], ids=["async", "causal"])


class BlocksOfAllLengths(RoundPlanner):
    """Drafts blocks of other lengths round by round, whatever they are worth."""

    def __init__(self, *, causal: bool, lengths: tuple[int, ...] = (3, 1, GAMMA, 0, 1, 5)) -> None:
        super().__init__(RoundClock(step_curve(*CURVE, gamma=GAMMA), adapt=False), gamma=GAMMA, causal=causal)
        self._steps = cycle(lengths)

    def plan(self, *args: Any, **kwargs: Any) -> RoundPlan:
        steps = next(self._steps)
        return replace(super().plan(*args, **kwargs), next_steps=steps, lasting_steps=steps)


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
