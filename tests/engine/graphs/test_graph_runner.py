"""Rounds as graph replays against eager rounds: the same texts and the same counts."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from fixture_engine import SometimesNothing, prompts, reference, texts
from graph_engine import graph_device, make_pair_engine

from dspark.engine import Completion, Engine, Request, SamplingParams
from dspark.engine.errors import EngineError
from dspark.engine.graphs.static_memory import GraphSizes

__all__ = ["graph_device"]

NAMES = ("dspark_vanilla", "dspark_rnn", "dspark_sliding")
POLICIES = {
    "none": "none",
    "fixed": "fixed:7",
    "short": "fixed:2",
    "threshold": "threshold:0.3",
    "sometimes": SometimesNothing(),
}


def run(engine: Engine, *, copies: int = 1, **sampling: Any) -> list[Completion]:
    """Completions of the fixture prompts, in order; rows of unequal length finish at different times."""
    settings = {"max_tokens": 40} | sampling
    rows = [
        Request(index, prompt, SamplingParams(**settings))
        for index, prompt in enumerate(prompt for _ in range(copies) for prompt in prompts())
    ]
    done = sorted(engine.generate(rows), key=lambda completion: completion.index)
    assert not [c.error for c in done if c.error]
    return done


CASES = [(name, policy, concurrency) for name in NAMES for policy in POLICIES for concurrency in (1, 5, 16)]
CASES += [(name, policy, 5) for name in ("spec_dspark_d2t", "zlab_dflash") for policy in ("fixed", "threshold")]


@pytest.mark.parametrize(("name", "policy", "concurrency"), CASES)
def test_greedy(graph_device: str, name: str, policy: str, concurrency: int) -> None:
    engine = make_pair_engine(name, graph_device, graphs=True, policy=POLICIES[policy], concurrency=concurrency)
    done = run(engine)
    assert [completion.token_ids for completion in done] == reference(name)
    if graph_device == "cpu":
        # One by one, where the graphs' rounds overlap.
        eager = make_pair_engine(name, "cpu", graphs=False, policy=POLICIES[policy], concurrency=concurrency)
        assert [completion.counts for completion in done] == [completion.counts for completion in run(eager)]


@pytest.mark.parametrize("chunk", [7, 40, 64], ids=str)
def test_prompts_cut_into_chunks(graph_device: str, chunk: int) -> None:
    engine = make_pair_engine("dspark_rnn", graph_device, graphs=True, concurrency=5, prefill_chunk_tokens=chunk)
    assert [completion.token_ids for completion in run(engine)] == reference("dspark_rnn")


@pytest.mark.parametrize("acceptance", ["rejection", "coupled"])
@pytest.mark.parametrize("truncated", [False, True], ids=["plain", "truncated"])
@pytest.mark.parametrize("name", ["dspark_rnn", "spec_dspark_d2t", "zlab_dflash"])
def test_sampled(graph_device: str, name: str, acceptance: str, truncated: bool) -> None:
    settings: dict[str, Any] = {"temperature": 0.8} | ({"top_k": 20, "top_p": 0.9} if truncated else {})
    pair = [
        make_pair_engine(name, graph_device, graphs=graphs, concurrency=6, acceptance=acceptance)
        for graphs in (True, False)
    ]
    mine, eager = (run(engine, **settings) for engine in pair)
    assert [c.token_ids for c in mine] == [c.token_ids for c in eager]
    assert [c.counts for c in mine] == [c.counts for c in eager]


@pytest.mark.parametrize("acceptance", ["rejection", "coupled"])
@pytest.mark.parametrize("name", ["dspark_rnn", "spec_dspark_d2t", "zlab_dflash"])
def test_sampled_drafts_from_few_tokens(graph_device: str, name: str, acceptance: str) -> None:
    config = {"concurrency": 6, "acceptance": acceptance, "draft_top_k": 5}
    pair = [make_pair_engine(name, graph_device, graphs=graphs, **config) for graphs in (True, False)]
    mine, eager = (run(engine, temperature=0.8) for engine in pair)
    assert [c.token_ids for c in mine] == [c.token_ids for c in eager]
    assert [c.counts for c in mine] == [c.counts for c in eager]
    assert sum(c.counts.accepted for c in mine)


@pytest.mark.parametrize("graphs", [True, False], ids=["graphs", "eager"])
@pytest.mark.parametrize("name", ["dspark_rnn", "spec_dspark_d2t"])
def test_greedy_text_does_not_depend_on_what_is_drafted_from(graph_device: str, name: str, graphs: bool) -> None:
    results = []
    for top_k in (3, None):
        engine = make_pair_engine(name, graph_device, graphs=graphs, concurrency=5, draft_top_k=top_k)
        results.append(run(engine))
    assert [c.token_ids for c in results[0]] == reference(name)
    assert [c.counts for c in results[0]] == [c.counts for c in results[1]]


@pytest.mark.parametrize("top_k", [None, 3], ids=["from all", "from three"])
def test_greedy_and_sampled_rows_together(graph_device: str, top_k: int | None) -> None:
    results = []
    for graphs in (True, False):
        config = {"concurrency": 5, "draft_top_k": top_k}
        engine = make_pair_engine("dspark_vanilla", graph_device, graphs=graphs, **config)
        rows = [
            Request(i, prompt, SamplingParams(max_tokens=30, temperature=(0.0, 0.7, 1.3)[i % 3], top_k=i % 2 * 30))
            for i, prompt in enumerate(prompts())
        ]
        results.append(texts(engine.generate(rows)))
    assert results[0] == results[1]


def test_preemption(graph_device: str) -> None:
    engine = make_pair_engine(
        "dspark_rnn", graph_device, graphs=True, concurrency=6, kv_cache_tokens=120, max_context=100
    )
    assert [completion.token_ids for completion in run(engine)] == reference("dspark_rnn")
    assert engine.stats.preemptions > 0


def test_every_run_replays_the_same_graphs(graph_device: str) -> None:
    engine = make_pair_engine("dspark_rnn", graph_device, graphs=True, concurrency=4)
    assert engine.graphs is not None
    run(engine)
    captured = engine.graphs.num_captured
    assert [completion.token_ids for completion in run(engine)] == reference("dspark_rnn")
    assert engine.graphs.num_captured == captured


@pytest.mark.parametrize("graphs", [True, False], ids=["graphs", "eager"])
@pytest.mark.parametrize("sampling", [{}, {"temperature": 0.8}, {"temperature": 0.8, "top_k": 5}], ids=str)
def test_logits_that_overflow_end_the_run(graph_device: str, graphs: bool, sampling: dict[str, Any]) -> None:
    engine = make_pair_engine("dspark_rnn", graph_device, graphs=graphs, concurrency=4)
    asked = [Request(i, p, SamplingParams(max_tokens=40 if i else 3, **sampling)) for i, p in enumerate(prompts()[:4])]
    running = engine.generate(asked)
    assert next(running).index == 0
    # One of many hidden numbers, in the middle of the run: prefill saw none of it.
    with torch.inference_mode():
        engine.target.decoder.norm[5] = float("nan")
    with pytest.raises(EngineError, match="not finite"):
        list(running)


def test_closed_halfway(graph_device: str) -> None:
    engine = make_pair_engine("dspark_rnn", graph_device, graphs=True, concurrency=4)
    rows = [Request(i, prompt, SamplingParams(max_tokens=40)) for i, prompt in enumerate(prompts())]
    running = engine.generate(rows)
    next(running)
    running.close()
    assert [completion.token_ids for completion in run(engine)] == reference("dspark_rnn")


def test_memory_report(graph_device: str) -> None:
    engine = make_pair_engine("dspark_rnn", graph_device, graphs=True, concurrency=4)
    report = engine.memory_report()
    assert report["target logits"] == 4 * 8 * 256 * 4
    assert report["draft logits (q)"] == 4 * 7 * 256 * 4
    assert all(size >= 0 for size in report.values())


def test_memory_of_drafts_from_few_tokens(graph_device: str) -> None:
    engine = make_pair_engine("dspark_rnn", graph_device, graphs=True, concurrency=4, draft_top_k=16)
    assert engine.graphs is not None
    memory = engine.graphs.memory
    run(engine, temperature=0.8)
    assert engine.memory_report()["draft logits (q)"] == 4 * 7 * 16 * (4 + 4)
    assert memory.draft_top is not None and memory.draft_top.ids.shape == (4, 7, 16)
    # Nowhere is a number kept for every token of every draft, but where the target's logits are.
    tensors = [value for value in vars(memory).values() if isinstance(value, torch.Tensor)]
    assert [tensor is memory.logits for tensor in tensors if tensor.numel() >= 4 * 7 * 256] == [True]


@pytest.mark.parametrize(
    ("top_k", "expected"), [(None, 256 * 7 * 49152 * 4), (16, 256 * 7 * 16 * 8)], ids=["from all", "from sixteen"]
)
def test_memory_of_q(top_k: int | None, expected: int) -> None:
    sizes = GraphSizes(
        concurrency=256, steps=7, block_width=7, vocab_size=49152, max_pages=64, keeps_q=True, draft_top_k=top_k
    )
    assert sizes.report()["draft logits (q)"] == expected


@pytest.mark.gpu
def test_512_requests_at_once() -> None:
    engine = make_pair_engine("dspark_rnn", "cuda", graphs=True, concurrency=512)
    done = run(engine, copies=40)
    assert [completion.token_ids for completion in done] == 40 * reference("dspark_rnn")
