"""Launches paged attention of packed queries on the GPU, with or without the rotation before it."""

import math
from dataclasses import dataclass

import torch
import triton
from torch import Tensor

from dspark.kernels.attention.kernel import attention_kernel
from dspark.kernels.attention.layout import AttentionLayout
from dspark.kernels.attention.split_plan import SplitPlan, plan_splits
from dspark.kernels.pdl import launch_options, launches_early
from dspark.kernels.rope_cache.triton import rope_and_cache

# Packed rows up to which the attention kernel itself rotates queries and stores K and V: each tile does it anew.
_MAX_FUSED_ROWS = 32
# Of a merge step: as many registers as the main loop takes anyway.
_MERGED_ELEMENTS = 4096


@dataclass(slots=True)
class _Rotation:
    """What the kernel needs beside the projection to rotate queries and store K and V itself."""

    cos: Tensor  # [positions, 1, D]
    sin: Tensor
    angle_rows: Tensor  # [T]
    cache_rows: Tensor  # [T]
    q_norm: Tensor | None
    k_norm: Tensor | None
    eps: float


def paged_attention(q: Tensor, k_cache: Tensor, v_cache: Tensor, layout: AttentionLayout, *, scale: float) -> Tensor:
    """q [T, Hq, D]; k_cache, v_cache [N, Hkv, D] -> [T, Hq, D]. What a query sees: `AttentionLayout`.

    Rows that no request owns, and queries that see nothing, come back as zeros.
    """
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    if q.shape[0] == 0:
        return out
    assert q.stride()[1:] == (q.shape[2], 1)
    _launch(q, q.stride(0), None, k_cache, v_cache, out, layout, scale)
    return out


def rope_attention(
    qkv: Tensor,
    cos: Tensor,
    sin: Tensor,
    layout: AttentionLayout,
    *,
    k_cache: Tensor,
    v_cache: Tensor,
    cache_rows: Tensor,
    num_heads: int,
    num_kv_heads: int,
    scale: float,
    q_norm: Tensor | None = None,
    k_norm: Tensor | None = None,
    eps: float = 1e-6,
    angle_rows: Tensor | None = None,
) -> Tensor:
    """`rope_and_cache`, then `paged_attention`: qkv [T, (Hq+2Hkv)*D] -> [T, Hq, D]. One launch for few queries."""
    head_dim = k_cache.shape[-1]
    few = layout.max_query_len * (num_heads // num_kv_heads) <= _MAX_FUSED_ROWS
    if not (few and angle_rows is not None and layout.kv_rows is None) or qkv.shape[0] == 0:
        q = rope_and_cache(
            qkv, cos, sin, k_cache=k_cache, v_cache=v_cache, cache_rows=cache_rows, num_heads=num_heads,
            num_kv_heads=num_kv_heads, q_norm=q_norm, k_norm=k_norm, eps=eps, angle_rows=angle_rows,
        )  # fmt: skip
        return paged_attention(q, k_cache, v_cache, layout, scale=scale)
    assert qkv.stride(1) == cos.stride(2) == 1 and cos.stride() == sin.stride()
    out = torch.empty(qkv.shape[0], num_heads, head_dim, dtype=qkv.dtype, device=qkv.device)
    rotation = _Rotation(cos, sin, angle_rows, cache_rows, q_norm, k_norm, eps)
    _launch(qkv, qkv.stride(0), rotation, k_cache, v_cache, out, layout, scale)
    return out


def _launch(
    q: Tensor,
    q_stride: int,
    rotation: _Rotation | None,
    k_cache: Tensor,
    v_cache: Tensor,
    out: Tensor,
    layout: AttentionLayout,
    scale: float,
) -> None:
    tokens, heads, head_dim = out.shape
    kv_heads = k_cache.shape[1]
    assert k_cache.stride()[1:] == (head_dim, 1) and k_cache.stride() == v_cache.stride()
    plan = layout.plan
    if not isinstance(plan, SplitPlan) or not plan.fits(out):
        plan = layout.plan = plan_splits(layout, out, k_cache)
    requests = layout.query_starts.shape[0] - 1
    windowed = layout.kv_rows is not None
    tables = layout.block_tables if layout.kv_rows is None else layout.kv_rows
    assert tables.stride(1) == 1
    block_dim = max(16, triton.next_power_of_2(head_dim))
    early = launches_early(out.device)
    norm = rotation is not None and rotation.q_norm is not None
    attention_kernel[(requests + 1, plan.tiles * kv_heads, plan.splits)](
        q,
        rotation.cos if rotation else None,
        rotation.sin if rotation else None,
        rotation.angle_rows if rotation else None,
        rotation.cache_rows if rotation else None,
        rotation.q_norm if rotation else None,
        rotation.k_norm if rotation else None,
        rotation.eps if rotation else 0.0,
        rotation.cos.stride(0) if rotation else 0,
        k_cache,
        v_cache,
        out,
        plan.partial,
        plan.log_sums,
        plan.arrivals,
        tables,
        layout.query_starts,
        layout.kv_lens,
        # The softmax runs in powers of two.
        scale * math.log2(math.e),
        tokens,
        requests,
        q_stride,
        k_cache.stride(0),
        tables.stride(0),
        KV_HEADS=kv_heads,
        GROUP=heads // kv_heads,
        HEAD_DIM=head_dim,
        PAGE=layout.page_size,
        CAUSAL=layout.causal,
        WINDOW=tables.shape[1] if windowed else 0,
        SPLITS=plan.splits,
        MIN_ROWS=plan.min_rows,
        BLOCK_M=plan.block_m,
        BLOCK_N=plan.block_n,
        BLOCK_DIM=block_dim,
        BLOCK_ROWS=min(plan.block_m, max(1, _MERGED_ELEMENTS // (plan.splits * block_dim))),
        PRECISION="ieee" if q.dtype == torch.float32 else "tf32",
        ROPE=rotation is not None,
        NORM=norm,
        BLOCK_Q=triton.next_power_of_2(layout.max_query_len) if rotation else 1,
        PDL=early,
        num_warps=plan.num_warps,
        num_stages=plan.num_stages,
        **launch_options(early),
    )
