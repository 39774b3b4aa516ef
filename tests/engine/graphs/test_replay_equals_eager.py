"""A replayed graph gives bit for bit what its launches give one by one at the same padded shape."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from graph_engine import make_pair_engine
from staged_batch import StagedBatch, fill_caches

from dspark.engine import Engine, EngineConfig, Request, SamplingParams
from dspark.engine.graphs.buckets import SHORT_CONTEXT, context_bucket
from dspark.engine.kv_pool import PagePool
from dspark.engine.packing import pack
from dspark.engine.sampling import Sampling

pytestmark = pytest.mark.gpu
CONCURRENCY, STEPS, LONGEST = 40, 7, 300


@pytest.fixture(scope="module", params=[None, 5], ids=["from all", "from five"])
def engine(request: pytest.FixtureRequest) -> Engine:
    """Drafts are drawn from all tokens, or from few."""
    config = {"concurrency": CONCURRENCY, "draft_top_k": request.param}
    engine = make_pair_engine("dspark_rnn", "cuda", graphs=True, **config)
    fill_caches(engine)
    return engine


def batch_of(engine: Engine, num_tokens: int, *, temperature: float = 0.0) -> StagedBatch:
    """Requests of mixed lengths and contexts that are `num_tokens` packed tokens in all."""
    rng = np.random.default_rng(num_tokens)
    lengths = []
    left = num_tokens
    while left:
        must = left - (CONCURRENCY - len(lengths) - 1) * (1 + STEPS)
        lengths.append(int(rng.integers(max(must - 1, 0), min(STEPS, left - 1) + 1)))
        left -= 1 + lengths[-1]
    starts = rng.integers(1, LONGEST, len(lengths))
    return StagedBatch.on(engine, starts, np.array(lengths), temperature=temperature, seed=num_tokens)


def same_twice(
    engine: Engine, eager: Callable[[], None], replay: Callable[[], None], *, num_requests: int | None = None
) -> None:
    """Outputs and caches after both, each started from the same memory.

    num_requests: real requests; what is decided for padding ones is whatever memory held, and nobody reads it.
    """
    assert engine.graphs is not None and engine.draft_cache is not None
    memory = engine.graphs.memory
    q = [memory.draft_logits] if memory.draft_top is None else [memory.draft_top.ids, memory.draft_top.log_probs]
    outputs = [memory.logits, memory.result[:num_requests], *q, memory.confidence_logits, memory.state]
    # Padding tokens all write the padding page, in no order.
    rows = slice(engine.page_size, None)
    for cache in (engine.target_cache, engine.draft_cache):
        outputs += [cache.k[:, rows], cache.v[:, rows]]
    before = [tensor.clone() for tensor in outputs]
    found = []
    for call in (eager, replay):
        for tensor, value in zip(outputs, before, strict=True):
            tensor.copy_(value)
        with torch.inference_mode():
            call()
        found.append([tensor.clone() for tensor in outputs])
    for one, other in zip(*found, strict=True):
        assert torch.equal(one, other)


def boundaries(sizes: tuple[int, ...]) -> list[int]:
    return sorted({n for size in sizes for n in (size, size + 1) if n <= sizes[-1]})


def test_target_at_every_bucket_boundary(engine: Engine) -> None:
    assert engine.graphs is not None
    graphs = engine.graphs.target
    for num_tokens in boundaries(graphs.buckets.sizes):
        batch = batch_of(engine, num_tokens)
        assert batch.num_tokens == num_tokens
        bucket = graphs.buckets.bucket_for(num_tokens)
        context = context_bucket(1, engine.pages_per_request * engine.page_size)
        same_twice(engine, lambda bucket=bucket, context=context: graphs._run(bucket, context), batch.target)


def test_buckets_do_not_change_the_logits_much(engine: Engine) -> None:
    """The same batch in a larger bucket: only the order of sums differs."""
    assert engine.graphs is not None
    batch = batch_of(engine, 37)
    logits = engine.graphs.memory.logits
    found = []
    for bucket in (37, 64, 320):
        engine.graphs.target.replay(bucket, LONGEST)
        found.append(logits[: batch.num_tokens].clone())
    for other in found[1:]:
        torch.testing.assert_close(found[0], other, rtol=1e-4, atol=1e-4)


DRAFTED = pytest.mark.parametrize("steps", [1, 3, STEPS])


@DRAFTED
@pytest.mark.parametrize("sampling", list(Sampling), ids=lambda sampling: sampling.value)
def test_verification(engine: Engine, sampling: Sampling, steps: int) -> None:
    assert engine.graphs is not None
    graphs = engine.graphs.verification
    for num_requests in boundaries(graphs.buckets.sizes):
        rng = np.random.default_rng(num_requests)
        lengths = rng.integers(0, steps + 1, num_requests)
        temperature = 0.0 if sampling is Sampling.GREEDY else 0.9
        batch = StagedBatch.on(engine, rng.integers(1, LONGEST, num_requests), lengths, temperature=temperature)
        with torch.inference_mode():
            batch.draft(sampled=temperature > 0, steps=steps)
            batch.target()
        bucket = graphs.buckets.bucket_for(num_requests)
        same_twice(
            engine,
            # Greedy rows read no q, whose place depends on how many tokens were drafted.
            lambda bucket=bucket: graphs._run(bucket, sampling, STEPS if sampling is Sampling.GREEDY else steps),
            lambda b=batch: b.verification(sampling, steps=steps),
            num_requests=num_requests,
        )


@DRAFTED
@pytest.mark.parametrize("sampled", [False, True], ids=["greedy", "sampled"])
def test_draft(engine: Engine, sampled: bool, steps: int) -> None:
    assert engine.graphs is not None and engine.graphs.drafts is not None
    graphs = engine.graphs.drafts
    context = context_bucket(1, engine.pages_per_request * engine.page_size)
    for num_requests in boundaries(graphs.buckets.sizes):
        rng = np.random.default_rng(num_requests)
        starts = rng.integers(1, LONGEST, num_requests)
        batch = StagedBatch.on(engine, starts, np.zeros_like(starts), temperature=float(sampled))
        bucket = graphs.buckets.bucket_for(num_requests)
        same_twice(
            engine,
            lambda bucket=bucket: graphs._run(bucket, context, sampled, steps),
            lambda b=batch: b.draft(sampled=sampled, steps=steps),
        )


@pytest.mark.parametrize("lengths", [[1], [63, 1], [300, 7, 40], [5] * 40], ids=str)
def test_prefill_of_prompts(engine: Engine, lengths: list[int]) -> None:
    assert engine.graphs is not None
    graphs, tokens = engine.graphs.prefill, sum(lengths)
    pool = PagePool(engine.num_pages, engine.page_size, num_slots=40, max_pages_per_slot=engine.pages_per_request)
    slots, counts = np.arange(len(lengths)), np.array(lengths)
    pool.grow(slots, -(-counts // engine.page_size))
    engine.graphs.memory.tables.copy_(torch.from_numpy(pool.tables))
    index = pack(pool, slots, np.zeros_like(counts), counts)
    ids = np.random.default_rng(tokens).integers(0, engine.target.config.vocab_size, tokens)

    def replay() -> None:
        graphs.run(index, ids, slots=slots, logit_rows=np.cumsum(counts) - 1)

    replay()
    [(shape, _)] = [item for item in graphs._graphs.items() if item[0].tokens == graphs.buckets.bucket_for(tokens)]
    same_twice(engine, lambda: graphs._run(graphs._inputs[shape.tokens], shape), replay)


@pytest.mark.parametrize("concurrency", [1, 4])
def test_texts_of_a_dummy_target(concurrency: int) -> None:
    """Plain decoding in fp32: attention over prompts is cut otherwise in graphs, so a sum's order may differ."""
    texts = []
    for graphs in (True, False):
        engine = Engine(
            EngineConfig(
                target="smollm2-135m", load_format="dummy", policy="none", device="cuda", concurrency=concurrency,
                max_context=2048, graphs=graphs, dtype="float32",
            )
        )  # fmt: skip
        sampling = SamplingParams(max_tokens=64, ignore_eos=True)
        rows = [Request(i, [100 * i + k for k in range(40)], sampling) for i in range(concurrency)]
        texts.append({c.index: c.token_ids for c in engine.generate(rows)})
    assert texts[0] == texts[1]


def test_long_contexts_get_their_own_graphs() -> None:
    engine = Engine(
        EngineConfig(
            target="smollm2-135m", load_format="dummy", policy="none", device="cuda", concurrency=2, max_context=2048
        )
    )
    assert engine.graphs is not None
    captured = engine.graphs.num_captured
    sampling = SamplingParams(max_tokens=20, ignore_eos=True)
    [short] = engine.generate([Request(0, list(range(3, 900)), sampling)])
    # The prompt's own; rounds need none.
    assert engine.graphs.num_captured == captured + 1 and len(short.token_ids) == 20
    [long] = engine.generate([Request(0, list(range(3, SHORT_CONTEXT - 5)), sampling)])
    assert engine.graphs.num_captured == captured + 2 and len(long.token_ids) == 20
