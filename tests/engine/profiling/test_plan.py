"""Which batches a profile measures."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from model_timer import ModelTimer

from dspark.engine.profiling.plan import Planner, token_ladder


@pytest.mark.parametrize("limit", [1, 2, 3, 4, 5, 7, 16, 63, 128, 2048])
def test_ladder_rises_to_its_limit(limit):
    ladder = token_ladder(limit)
    assert ladder[-1] == limit
    assert list(ladder) == sorted(set(ladder))
    # Past the smallest, a bucket wastes under a third of itself.
    assert all(low >= 0.66 * high for low, high in pairwise(ladder) if low >= 8)


def plan(timer, contexts=(256, 1024), concurrency=4):
    planner = Planner(timer, concurrency=concurrency, tokens_per_request=8, block_width=7, contexts=contexts)
    return planner.plan(np.random.default_rng(0))


def test_plan_covers_every_bucket_with_full_blocks_and_with_all_requests():
    points = plan(ModelTimer()).points
    fitted = [p for p in points if p.kind == "target" and not p.held_out]
    assert {(p.bucket, p.num_requests) for p in fitted} == {
        (1, 1),
        (4, 1),
        (4, 4),
        (8, 1),
        (8, 4),
        (16, 2),
        (16, 4),
        (32, 4),
    }
    assert {p.context_tokens for p in fitted} == {256, 1024}
    assert all(p.num_tokens == p.bucket for p in fitted)
    for kind in ("draft", "verify_greedy", "verify_sampled"):
        assert {p.num_requests for p in points if p.kind == kind} == {1, 2, 4}
    assert {p.num_tokens for p in points if p.kind == "verify_greedy" and p.num_requests == 4} == {4, 32}
    assert len(set(points)) == len(points)


@pytest.mark.parametrize(("short_context", "context"), [(None, 256), (512, 256), (200, 193)], ids=str)
def test_blocks_of_one_token_and_sampled_ones_are_measured_once_a_bucket(short_context, context):
    """Behind a short context; whole greedy blocks behind all."""
    points = plan(ModelTimer(short_context=short_context)).points
    for kind in ("draft_one", "draft_sampled", "draft_sampled_one"):
        assert [(p.num_requests, p.context_tokens) for p in points if p.kind == kind] == [
            (n, context) for n in (1, 2, 4)
        ]
    assert {p.context_tokens for p in points if p.kind == "draft"} >= {256, 1024}


def test_held_out_points_are_no_fitted_ones():
    points = plan(ModelTimer()).points
    held_out = [p for p in points if p.held_out]
    assert held_out
    fitted = {(p.num_tokens, p.num_requests, p.context_tokens) for p in points if not p.held_out}
    assert not fitted & {(p.num_tokens, p.num_requests, p.context_tokens) for p in held_out}
    assert all(256 <= p.context_tokens <= 1024 for p in held_out)


@pytest.mark.parametrize("buckets", [(1, 3), (1, 2)], ids=str)
def test_nothing_is_measured_beyond_the_largest_batch(buckets):
    timer = ModelTimer()
    timer.token_buckets = buckets
    points = plan(timer).points
    assert points and all(point.num_tokens <= buckets[-1] for point in points if not point.kind.startswith("draft"))


def test_what_does_not_fit_is_said():
    clipped = plan(ModelTimer(capacity=2500), contexts=(256, 1024, 4096))
    # 2,000 positions less a block; two requests share 2,500 rows.
    assert clipped.context_tokens == (256, 1024, 1992)
    assert clipped.notes == (
        "A context of 4,096 tokens is longer than the models allow: 1,992 were measured.",
        "The KV memory holds 2 of 4 requests with 1,024 tokens of context: larger batches were measured behind "
        "shorter ones.",
        "The KV memory holds 1 of 4 requests with 1,992 tokens of context: larger batches were measured behind "
        "shorter ones.",
    )
    # A pool too small for any context asked for is measured with what it holds.
    tight = plan(ModelTimer(capacity=400), contexts=(256,))
    assert {p.context_tokens for p in tight.points if p.num_requests == 4 and not p.held_out} == {92}
