"""Requests of every kind over a toy pair, decoded by the shipped engine and held against the enumerated truth."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
import torch
from chi_square import fit_p_value
from toy_pair import LAST_TOKEN, VOCAB, ToyPair, history_logits, make_toy_pair, text_probabilities

from dspark.engine import Engine, EngineConfig, Request, SamplingParams
from dspark.engine.ngram.drafter import NgramDrafter
from dspark.engine.scheduler.planner import RoundPlanner
from dspark.engine.scheduler.policies import LengthPolicy, Planned

PROMPTS = ([0], [1, 2, 0])
SETTINGS = (
    SamplingParams(temperature=1.0),
    SamplingParams(temperature=0.6),
    SamplingParams(temperature=1.4, top_k=2),
    SamplingParams(temperature=1.0, top_p=0.8),
    SamplingParams(temperature=0.8, top_k=2, top_p=0.9),
    SamplingParams(temperature=0.0),
)
NUM_GROUPS = len(PROMPTS) * len(SETTINGS)
# A round of fixed:3 emits at most 4 tokens, so 14 tokens (one of them from prefill) take at least 4 rounds.
MAX_TOKENS = (14, 15, 17, 20)
FIRST_TOKEN = 4
FITS = 1e-3
FAILS = 1e-6
MAX_CONTEXT = 3 + max(MAX_TOKENS)


@pytest.fixture(scope="module")
def pair() -> Iterator[ToyPair]:
    threads = torch.get_num_threads()
    # Tensors this small only lose by being shared out.
    torch.set_num_threads(1)
    yield make_toy_pair()
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def logits(pair: ToyPair) -> list[list[np.ndarray]]:
    """For each prompt, the logits behind all texts of 0 to 11 tokens."""
    return [history_logits(pair.reference, prompt) for prompt in PROMPTS]


@pytest.fixture(scope="module")
def truth(logits: list[list[np.ndarray]]) -> list[list[np.ndarray]]:
    """For each group of requests, the probabilities of all texts of 1 to 12 tokens."""
    return [text_probabilities(logits[g % len(PROMPTS)], SETTINGS[g // len(PROMPTS)]) for g in range(NUM_GROUPS)]


def group_of(index: int) -> int:
    return index % NUM_GROUPS


def requests(count: int) -> Iterator[Request]:
    """Prompts, sampling settings and lengths in every combination, side by side in every batch."""
    for index in range(count):
        group = group_of(index)
        max_tokens = MAX_TOKENS[index // NUM_GROUPS % len(MAX_TOKENS)]
        sampling = replace(SETTINGS[group // len(PROMPTS)], max_tokens=max_tokens)
        yield Request(index, PROMPTS[group % len(PROMPTS)], sampling)


def make_engine(
    pair: ToyPair,
    *,
    policy: str | LengthPolicy | Planned,
    planner: RoundPlanner | None = None,
    drafter: NgramDrafter | None = None,
    **config: object,
) -> Engine:
    """drafter: in place of the pair's."""
    settings = {"concurrency": 2048, "max_context": MAX_CONTEXT, "page_size": 4, "prefill_chunk_tokens": 1 << 15}
    spelled = policy if isinstance(policy, str) else None
    return Engine(
        EngineConfig(device="cpu", dtype="float32", policy=spelled, **(settings | config)),
        target=pair.target,
        drafter=drafter or pair.drafter,
        policy=None if isinstance(policy, str) else policy,
        planner=planner,
    )


def decode(engine: Engine, count: int, *, fewest_rounds: int = 0) -> np.ndarray:
    """The first 12 tokens of `count` requests, [count, 12]."""
    tokens = np.full((count, LAST_TOKEN), -1, dtype=np.int64)
    for completion in engine.generate(requests(count)):
        assert completion.finish_reason == "length", completion
        assert completion.counts.rounds >= fewest_rounds
        tokens[completion.index] = completion.token_ids[:LAST_TOKEN]
    return tokens


def p_values(tokens: np.ndarray, truth: list[list[np.ndarray]], *, width: int = 1) -> dict[int, float]:
    """p of the fit of each `width` neighbouring tokens whose last is token 4 .. 12."""
    group = group_of(np.arange(len(tokens)))
    outcomes = VOCAB**width
    result = {}
    for last in range(FIRST_TOKEN, LAST_TOKEN + 1):
        window = tokens[:, last - width : last] @ VOCAB ** np.arange(width)[::-1]
        result[last] = fit_p_value(
            (
                np.bincount(window[group == g], minlength=outcomes),
                truth[g][last - 1].reshape(-1, outcomes).sum(axis=0),
            )
            for g in range(NUM_GROUPS)
        )
    return result


def assert_fits(tokens: np.ndarray, truth: list[list[np.ndarray]]) -> None:
    for width in (1, 2):
        found = p_values(tokens, truth, width=width)
        assert min(found.values()) > FITS, (width, found)


def assert_fails(tokens: np.ndarray, truth: list[list[np.ndarray]]) -> None:
    found = p_values(tokens, truth)
    assert min(found.values()) < FAILS, found
