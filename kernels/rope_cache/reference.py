"""Rotary embedding of queries and keys (with optional per-head norms) and the write of K and V into the cache."""

import torch
import torch.nn.functional as F
from torch import Tensor


def rope_and_cache(
    qkv: Tensor,
    cos: Tensor,
    sin: Tensor,
    *,
    k_cache: Tensor,
    v_cache: Tensor,
    cache_rows: Tensor,
    num_heads: int,
    num_kv_heads: int,
    q_norm: Tensor | None = None,
    k_norm: Tensor | None = None,
    eps: float = 1e-6,
    angle_rows: Tensor | None = None,
) -> Tensor:
    """Rotate Q and K, write K and V into `cache_rows`, return Q.

    qkv [T, (Hq+2Hkv)*D], Q heads first, then K, then V; cos, sin [T, 1, D] fp32, see `rotation_tables`,
    or whole tables of which token t takes row angle_rows[t];
    k_cache, v_cache [N, Hkv, D]; cache_rows [T]; q_norm, k_norm [D]. Returns q [T, Hq, D] (maybe a strided view).
    """
    if angle_rows is not None:
        cos, sin = cos.index_select(0, angle_rows), sin.index_select(0, angle_rows)
    head_dim = k_cache.shape[-1]
    num_rotated = num_heads + num_kv_heads
    heads = qkv.view(qkv.shape[0], num_rotated + num_kv_heads, head_dim)  # [T, Hq+2Hkv, D]
    rotated = heads[:, :num_rotated]
    if q_norm is not None and k_norm is not None:
        q = F.rms_norm(rotated[:, :num_heads], q_norm.shape, q_norm, eps)
        k = F.rms_norm(rotated[:, num_heads:], k_norm.shape, k_norm, eps)
        rotated = torch.cat((q, k), dim=1)
    rotated = rotate_half(rotated, cos, sin)
    k_cache.index_copy_(0, cache_rows, rotated[:, num_heads:])
    v_cache.index_copy_(0, cache_rows, heads[:, num_rotated:])
    return rotated[:, :num_heads]


def rotation_tables(angles: Tensor) -> tuple[Tensor, Tensor]:
    """angles [T, D/2] fp32 -> cos, sin [T, 1, D] as every rotation here takes them: whole heads wide, sin signed.

    Both halves hold the same angles, and the first half of sin carries the rotation's minus.
    """
    cos, sin = angles.cos(), angles.sin()
    return torch.cat((cos, cos), dim=-1)[:, None], torch.cat((-sin, sin), dim=-1)[:, None]


def rotate_half(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Llama's rotation: dimension i pairs with i + D/2. x [T, heads, D]; cos, sin [T, 1, D] fp32. Returns x's dtype."""
    return (x * cos).addcmul_(x.roll(x.shape[-1] // 2, -1), sin).to(x.dtype)
