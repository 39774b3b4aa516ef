"""Step curves as the tables that other engines look times up in.

Each engine has its own rule of look-up. A table gives, by its engine's rule, the time of the curve at every batch size
that it covers, and not only at the buckets. Times are at the curve's reference context.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from dspark.profiles.curve import SCOPES, StepCurve
from dspark.profiles.staircase import FloatArray, IntArray

_MS = 1e3


def sglang_step_table(curve: StepCurve, *, scope: str = "round", sampled: bool = False) -> dict[str, Any]:
    """Steps a second by packed tokens, looked up by floor: one entry at the left edge of every shelf."""
    times_s = batch_times_s(curve, scope=scope, sampled=sampled)
    first, _, time_s = _shelves(times_s)
    return {
        "sample_batch_tokens": first.tolist(),
        "sample_steps_per_sec": (1 / time_s).tolist(),
        "max_batch_tokens": times_s.size,
    }


def tensorrt_llm_cost_table(curve: StepCurve, *, scope: str = "round", sampled: bool = False) -> dict[str, Any]:
    """Milliseconds by packed tokens plus milliseconds by requests, both interpolated: each shelf is two points.

    The forward is on the token axis; drafting, and verification of full blocks, are on the request axis (empty with
    scope "target").
    """
    assert scope in SCOPES, scope
    token_counts, step_s = _shelf_ends(curve.step_time_s(np.arange(1, curve.max_batch_tokens + 1)))
    batch_sizes, overhead_s = np.empty(0, dtype=np.int64), np.empty(0)
    if scope == "round":
        requests = np.arange(1, curve.max_requests + 1)
        draft_s = curve.draft_time_s(requests, sampled=sampled)
        round_overhead_s = draft_s + curve.verification_time_s(requests, sampled=sampled)
        batch_sizes, overhead_s = _shelf_ends(round_overhead_s)
    return {
        "token_counts": token_counts.tolist(),
        "step_time_ms": (step_s * _MS).tolist(),
        "fixed_overhead_ms": 0.0,
        "batch_sizes": batch_sizes.tolist(),
        "batch_overhead_ms": (overhead_s * _MS).tolist(),
    }


def deepinfer_perf_curve(
    curve: StepCurve, *, scope: str = "round", sampled: bool = False
) -> tuple[tuple[int, float], ...]:
    """(packed tokens, milliseconds) pairs of increasing size.

    A batch takes the time of the smallest graph that holds it: one pair at the right edge of every shelf.
    """
    _, last, time_s = _shelves(batch_times_s(curve, scope=scope, sampled=sampled))
    return tuple(zip(last.tolist(), (time_s * _MS).tolist(), strict=True))


def batch_times_s(curve: StepCurve, *, scope: str, sampled: bool) -> FloatArray:
    """Seconds at 1 ... N packed tokens [N], as few requests as can have them; N is what every part was profiled for."""
    assert scope in SCOPES, scope
    if scope == "target":
        return curve.step_time_s(np.arange(1, curve.max_batch_tokens + 1))
    most = min(curve.max_batch_tokens, curve.max_requests * curve.tokens_per_request)
    return curve.round_time_s(np.arange(1, most + 1), sampled=sampled)


def _shelves(times_s: FloatArray) -> tuple[IntArray, IntArray, FloatArray]:
    """times_s [N] of sizes 1 ... N -> first size, last size and time of every run of equal times."""
    starts = np.flatnonzero(np.diff(times_s, prepend=np.nan) != 0)
    return starts + 1, np.append(starts[1:], times_s.size), times_s[starts]


def _shelf_ends(times_s: FloatArray) -> tuple[IntArray, FloatArray]:
    """times_s [N] of sizes 1 ... N -> both ends of every shelf, a size of its own once."""
    first, last, time_s = _shelves(times_s)
    sizes, index = np.unique(np.concatenate([first, last]), return_index=True)
    return sizes, np.concatenate([time_s, time_s])[index]
