"""The text is the target's own, whatever goes on around it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from fixture_engine import MAX_TOKENS, SometimesNothing, generate, make_engine, prompts, reference, requests, texts
from tiny_models import TinyModel

from dspark.engine import Engine, Request, SamplingParams
from dspark.engine.config import EngineConfig

# Greedy


@pytest.mark.parametrize("name", ["dspark_vanilla", "dspark_rnn", "dspark_sliding"])
@pytest.mark.parametrize("policy", ["none", "fixed:1", "fixed:7", "threshold:0.5", "threshold-position:0.7"])
@pytest.mark.parametrize("concurrency", [1, 3, 16])
def test_greedy_text_is_the_targets(name: str, policy: str, concurrency: int) -> None:
    engine = make_engine(name, policy=policy, concurrency=concurrency)
    assert texts(engine.generate(requests())) == reference(name)


# A request of 55 + 40 tokens and a block needs 103 cache rows.
@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({"page_size": 1}, id="page-of-1"),
        pytest.param({"page_size": 16}, id="page-of-16"),
        pytest.param({"page_size": 64}, id="page-of-64"),
        pytest.param({"prefill_chunk_tokens": 1}, id="chunk-of-1"),
        pytest.param({"prefill_chunk_tokens": 7}, id="chunk-of-7"),
        pytest.param({"acceptance": "coupled"}, id="coupled"),
        pytest.param({"policy": SometimesNothing()}, id="changing-lengths"),
        pytest.param({"drafter": "none", "policy": "none"}, id="no-drafter"),
        pytest.param({"pipeline_depth": 1}, id="overlapped"),
        pytest.param({"pipeline_depth": 3, "concurrency": 5}, id="three-in-flight"),
        pytest.param({"pipeline_depth": 1, "policy": "none"}, id="overlapped-plain"),
        pytest.param({"pipeline_depth": 1, "policy": "threshold:0.5", "concurrency": 3}, id="overlapped-threshold"),
        pytest.param({"pipeline_depth": 1, "policy": SometimesNothing()}, id="overlapped-changing-lengths"),
        pytest.param({"pipeline_depth": 1, "kv_cache_tokens": 120, "max_context": 100}, id="overlapped-preemption"),
        pytest.param({"kv_cache_tokens": 120, "max_context": 100}, id="preemption"),
        pytest.param({"kv_cache_tokens": 240, "max_context": 100, "policy": SometimesNothing()}, id="preemption-mixed"),
    ],
)
def test_greedy_text_under_other_settings(changes: dict[str, Any]) -> None:
    engine = make_engine(**changes)
    assert texts(engine.generate(requests())) == reference("dspark_rnn")
    assert (engine.stats.preemptions > 0) == ("kv_cache_tokens" in changes)


def test_order_of_arrival() -> None:
    engine = make_engine(concurrency=3)
    for order in (reversed(requests()), np.random.default_rng(1).permutation(np.array(requests(), dtype=object))):
        assert texts(engine.generate(order)) == reference("dspark_rnn")


def test_stale_cache_rows_are_never_read() -> None:
    engine = make_engine()
    for cache_ in (engine.target_cache, engine.draft_cache):
        # Page 0 is padding and stays as it is.
        for tensor in (cache_.k, cache_.v):
            tensor[:, engine.page_size :] = float("nan")
    assert texts(engine.generate(requests())) == reference("dspark_rnn")


def test_every_architecture(any_tiny_model: TinyModel) -> None:
    config = EngineConfig(target=str(any_tiny_model.folder), drafter="none", device="cpu", dtype="float32")
    engine = Engine(config)
    own = [prompt for prompt in prompts()[:8] if max(prompt) < engine.target.config.vocab_size]
    own += [[3, 1, 4, 1, 5, 9, 2, 6]]
    sampling = SamplingParams(max_tokens=24)
    found = texts(engine.generate([Request(i, prompt, sampling) for i, prompt in enumerate(own)]))
    assert found == [generate(any_tiny_model.reference, prompt, 24, pad_token_id=0) for prompt in own]


# Sampling


@pytest.mark.parametrize("acceptance", ["rejection", "coupled"])
@pytest.mark.parametrize("policy", ["none", "fixed:3"])
def test_sampled_text_depends_on_the_seed_alone(policy: str, acceptance: str) -> None:
    sampling = {"temperature": 1.0, "top_p": 0.95, "top_k": 50}
    prompt = prompts()[6]

    def run(seeds: list[int | None], **config: Any) -> list[list[int]]:
        engine = make_engine(policy=policy, acceptance=acceptance, **config)
        params = [SamplingParams(max_tokens=20, seed=seed, **sampling) for seed in seeds]
        return texts(engine.generate([Request(i, prompt, p) for i, p in enumerate(params)]))

    first = run([7, 8, 7, None, None, -1, 2**64 - 1])
    assert first[0] == first[2]
    assert len({tuple(text) for text in first}) >= 5
    assert run([7, 8, 7, None, None, -1, 2**64 - 1], concurrency=2) == first
    # Seeds move with their requests; derived ones belong to the row.
    swapped = run([8, 7, None, None, 7])
    assert swapped[:2] == [first[1], first[0]]
    assert (swapped[3], swapped[4]) == (first[3], first[0])
    assert run([None] * 4, seed=1) != run([None] * 4, seed=2)


def test_temperatures_side_by_side() -> None:
    engine = make_engine()
    mixed = [
        Request(r.index, r.prompt_token_ids, SamplingParams(max_tokens=MAX_TOKENS, temperature=float(r.index % 2)))
        for r in requests()
    ]
    found = texts(engine.generate(mixed))
    assert found[::2] == reference("dspark_rnn")[::2]
    assert found[1::2] != reference("dspark_rnn")[1::2]
