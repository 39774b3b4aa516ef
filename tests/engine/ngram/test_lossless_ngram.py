"""Looked-up drafts leave the target's own distribution as it is: enumerated, not estimated."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from lossless import assert_fails, assert_fits, decode, logits, make_engine, pair, truth
from step_curves import step_curve
from toy_pair import GAMMA, ToyPair

from dspark.engine import Engine
from dspark.engine.eager import EagerRunner
from dspark.engine.ngram.drafter import NgramDrafter
from dspark.engine.proposals import DraftOutput
from dspark.engine.scheduler.planner import RoundPlanner
from dspark.engine.scheduler.policies import Planned
from dspark.engine.scheduler.round_time import RoundClock

__all__ = ["logits", "pair", "truth"]

COUNT = 24_000
CONCURRENCY = 256


def ngram_engine(pair: ToyPair, policy: str, **config: Any) -> Engine:
    """Planned policies follow a curve with a shelf at every 16 tokens, so that budgets move with the blocks."""
    drafter = NgramDrafter(block_size=GAMMA, longest_match=4)
    if policy not in ("async", "causal"):
        return make_engine(pair, drafter=drafter, policy=policy, **config)
    causal = policy == "causal"
    buckets = tuple(range(CONCURRENCY, CONCURRENCY * (1 + GAMMA) + 1, 16))
    times_s = tuple(0.01 + 2e-5 * (bucket - CONCURRENCY) for bucket in buckets)
    clock = RoundClock(step_curve(buckets, times_s, gamma=GAMMA, draft_s=1e-4), adapt=False)
    return make_engine(
        pair,
        drafter=drafter,
        policy=Planned(causal=causal),
        planner=RoundPlanner(clock, gamma=GAMMA, causal=causal, certain=True),
        concurrency=CONCURRENCY,
        **config,
    )


@pytest.mark.parametrize(
    ("policy", "config"),
    [
        pytest.param("fixed:3", {}, id="fixed"),
        pytest.param("threshold:0.4", {}, id="threshold"),
        pytest.param("fixed:2", {"kv_cache_tokens": 512 * 24, "concurrency": 1024}, id="preemption"),
        pytest.param("threshold:0.4", {"acceptance": "coupled"}, id="coupled"),
        pytest.param("async", {"kv_cache_tokens": CONCURRENCY * 14}, id="async"),
        pytest.param("causal", {"kv_cache_tokens": CONCURRENCY * 14}, id="causal"),
    ],
)
def test_text_follows_the_targets_distribution(
    pair: ToyPair, truth: list[list[np.ndarray]], policy: str, config: dict[str, Any]
) -> None:
    engine = ngram_engine(pair, policy, **config)
    assert_fits(decode(engine, COUNT), truth)
    counts = engine.stats.spec
    # Drafts that nobody accepts, or that all pass, would prove little; so would a schedule that never chooses.
    assert 0.2 < counts.accepted / counts.observed < 0.95
    assert policy.startswith("fixed") or counts.verified < 0.9 * counts.drafted
    assert (engine.stats.preemptions > 0) == ("kv_cache_tokens" in config)


@pytest.mark.parametrize("policy", ["fixed:3", "threshold:0.4", "async"])
def test_coupled_is_plain_sampling(pair: ToyPair, policy: str) -> None:
    plain = decode(make_engine(pair, policy="none"), 5_000)
    coupled = ngram_engine(pair, policy, acceptance="coupled")
    np.testing.assert_array_equal(decode(coupled, 5_000), plain)
    assert coupled.stats.spec.accepted > 0.2 * coupled.stats.spec.observed


def test_notices_a_looked_up_draft_verified_as_if_it_had_been_drawn(
    pair: ToyPair, truth: list[list[np.ndarray]], monkeypatch: pytest.MonkeyPatch
) -> None:
    own = EagerRunner.draft

    def drawn(self: EagerRunner, *args: Any) -> DraftOutput:
        output = own(self, *args)
        output.logits = torch.zeros(*output.tokens.shape, 3)
        return output

    monkeypatch.setattr(EagerRunner, "draft", drawn)
    assert_fails(decode(ngram_engine(pair, "fixed:3"), COUNT), truth)
