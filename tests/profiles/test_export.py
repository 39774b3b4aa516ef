"""Exported tables, read by each engine's own rule of look-up, against the curve at every batch size."""

from __future__ import annotations

import bisect
import json

import numpy as np
import pytest
from profile_samples import BUCKETS, GAMMA, make_profile

from dspark.profiles import StepCurve
from dspark.profiles.export import deepinfer_perf_curve, sglang_step_table, tensorrt_llm_cost_table

SCOPES = ("target", "round")


@pytest.fixture(scope="module")
def curve() -> StepCurve:
    return make_profile().curve


def time_s(curve: StepCurve, tokens: int, *, scope: str, sampled: bool) -> float:
    if scope == "target":
        return float(curve.step_time_s(tokens))
    return float(curve.round_time_s(tokens, sampled=sampled))


def read_sglang(table: dict, tokens: int) -> float:
    """Seconds of a step: the entry of the largest size that is not larger."""
    index = bisect.bisect_right(table["sample_batch_tokens"], tokens) - 1
    return 1 / table["sample_steps_per_sec"][index]


def read_tensorrt_llm(table: dict, tokens: int, requests: int) -> float:
    """Milliseconds of a step: both axes interpolated in straight lines, constant beyond their ends."""
    step = np.interp(tokens, table["token_counts"], table["step_time_ms"])
    overhead = np.interp(requests, table["batch_sizes"], table["batch_overhead_ms"]) if table["batch_sizes"] else 0.0
    return float(step + table["fixed_overhead_ms"] + overhead)


def read_deepinfer(pairs: tuple[tuple[int, float], ...], tokens: int) -> float:
    """Milliseconds of a step: those of the smallest graph that holds the batch."""
    return next(ms for size, ms in pairs if size >= tokens)


@pytest.mark.parametrize("sampled", [False, True], ids=["greedy", "sampled"])
@pytest.mark.parametrize("scope", SCOPES)
def test_sglang_reads_our_time_at_every_batch_size(curve: StepCurve, scope: str, sampled: bool) -> None:
    table = json.loads(json.dumps(sglang_step_table(curve, scope=scope, sampled=sampled), allow_nan=False))
    assert set(table) == {"sample_batch_tokens", "sample_steps_per_sec", "max_batch_tokens"}
    assert table["max_batch_tokens"] == curve.max_batch_tokens
    assert all(np.diff(table["sample_batch_tokens"]) > 0)
    for tokens in range(1, curve.max_batch_tokens + 1):
        expected = time_s(curve, tokens, scope=scope, sampled=sampled)
        assert read_sglang(table, tokens) == pytest.approx(expected, rel=1e-12)


def test_sglang_finds_a_buckets_speed_at_its_left_edge(curve: StepCurve) -> None:
    table = sglang_step_table(curve, scope="target")
    assert table["sample_batch_tokens"] == [1, 2, 3, 5, 9, 17]
    np.testing.assert_allclose(table["sample_steps_per_sec"], curve.steps_per_s(np.array(BUCKETS)))


@pytest.mark.parametrize("sampled", [False, True], ids=["greedy", "sampled"])
@pytest.mark.parametrize("scope", SCOPES)
def test_tensorrt_llm_reads_our_time_at_every_batch_and_request_count(
    curve: StepCurve, scope: str, sampled: bool
) -> None:
    table = json.loads(json.dumps(tensorrt_llm_cost_table(curve, scope=scope, sampled=sampled), allow_nan=False))
    assert set(table) == {"token_counts", "step_time_ms", "fixed_overhead_ms", "batch_sizes", "batch_overhead_ms"}
    assert all(np.diff(table["token_counts"]) > 0)
    assert all(time > 0 for time in table["step_time_ms"])
    for requests in range(1, 5):
        for tokens in range(requests, requests * (1 + GAMMA) + 1):
            expected = float(curve.step_time_s(tokens))
            if scope == "round":
                expected += float(curve.draft_time_s(requests))
                expected += float(curve.verification_time_s(requests, sampled=sampled))
            assert read_tensorrt_llm(table, tokens, requests) == pytest.approx(1e3 * expected, rel=1e-12)


def test_tensorrt_llm_reads_the_rounds_own_time_for_full_blocks(curve: StepCurve) -> None:
    table = tensorrt_llm_cost_table(curve)
    for requests in (1, 2, 4):
        tokens = requests * (1 + GAMMA)
        expected = float(curve.round_time_s(tokens, num_requests=requests))
        assert read_tensorrt_llm(table, tokens, requests) == pytest.approx(1e3 * expected, rel=1e-12)


@pytest.mark.parametrize("sampled", [False, True], ids=["greedy", "sampled"])
@pytest.mark.parametrize("scope", SCOPES)
def test_deepinfer_reads_our_time_at_every_batch_size(curve: StepCurve, scope: str, sampled: bool) -> None:
    pairs = deepinfer_perf_curve(curve, scope=scope, sampled=sampled)
    assert all(np.diff([size for size, _ in pairs]) > 0)
    assert set(BUCKETS) <= {size for size, _ in pairs}
    for tokens in range(1, curve.max_batch_tokens + 1):
        expected = time_s(curve, tokens, scope=scope, sampled=sampled)
        assert read_deepinfer(pairs, tokens) == pytest.approx(1e3 * expected, rel=1e-12)


def test_a_round_without_a_drafter_has_no_draft_time(curve: StepCurve) -> None:
    plain = StepCurve(
        target=curve.target,
        draft=None,
        verify_greedy=curve.verify_greedy,
        verify_sampled=curve.verify_sampled,
        tokens_per_request=1,
        block_width=0,
        reference_context_tokens=curve.reference_context_tokens,
    )
    table = sglang_step_table(plain)
    # Verification was profiled for four requests, and each has one token.
    assert table["max_batch_tokens"] == 4
    for tokens in range(1, 5):
        expected = float(plain.step_time_s(tokens) + plain.verification_time_s(tokens, tokens))
        assert read_sglang(table, tokens) == pytest.approx(expected, rel=1e-12)
