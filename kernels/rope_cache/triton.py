"""Per-head norms, RoPE and the cache write on the GPU: one launch for Q, K and V of a packed batch."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from dspark.kernels.pdl import await_inputs, launch_options, launches_early

# Elements a program holds: 16 bytes a thread and operand at 4 warps.
_TILE = 2048


@triton.jit
def _rope_cache_kernel(
    qkv,
    cos,
    sin,
    q,
    k_cache,
    v_cache,
    cache_rows,
    angle_rows,  # [T] rows of cos and sin; None: they have a row a token
    q_norm,
    k_norm,
    qkv_stride,
    angle_stride,
    cache_stride,
    eps,
    Q_HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    HALF: tl.constexpr,
    BLOCK_HEADS: tl.constexpr,
    BLOCK_HALF: tl.constexpr,
    NORM: tl.constexpr,
    PDL: tl.constexpr,
):
    token = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1) * BLOCK_HEADS + tl.arange(0, BLOCK_HEADS)[:, None]
    pair = tl.arange(0, BLOCK_HALF)[None, :]
    is_q = head < Q_HEADS
    is_v = head >= Q_HEADS + KV_HEADS
    inside = (head < Q_HEADS + 2 * KV_HEADS) & (pair < HALF)
    # Both come from before the kernel that made qkv.
    cache_row = tl.load(cache_rows + token).to(tl.int64)
    angle_row = token
    if angle_rows is not None:
        angle_row = tl.load(angle_rows + token).to(tl.int64)
    angle = angle_row * angle_stride + pair
    cosine = tl.load(cos + angle, mask=pair < HALF, other=0.0)
    sine = tl.load(sin + angle, mask=pair < HALF, other=0.0)
    await_inputs(PDL)
    address = qkv + token * qkv_stride + head * (2 * HALF) + pair
    first = tl.load(address, mask=inside, other=0.0).to(tl.float32)  # [heads, D/2]
    second = tl.load(address + HALF, mask=inside, other=0.0).to(tl.float32)
    normed_first = first
    normed_second = second
    if NORM:
        mean_square = (tl.sum(first * first, axis=1) + tl.sum(second * second, axis=1)) / (2 * HALF)
        scale = tl.rsqrt(mean_square + eps)[:, None]
        use_q = is_q & inside
        use_k = inside & (head >= Q_HEADS)
        gain_first = tl.load(q_norm + pair + head * 0, mask=use_q, other=0.0).to(tl.float32)
        gain_first += tl.load(k_norm + pair + head * 0, mask=use_k, other=0.0).to(tl.float32)
        gain_second = tl.load(q_norm + HALF + pair + head * 0, mask=use_q, other=0.0).to(tl.float32)
        gain_second += tl.load(k_norm + HALF + pair + head * 0, mask=use_k, other=0.0).to(tl.float32)
        # Rounded between norm and rotation, as the models were trained.
        normed_first = (first * scale * gain_first).to(qkv.dtype.element_ty).to(tl.float32)
        normed_second = (second * scale * gain_second).to(qkv.dtype.element_ty).to(tl.float32)
    turned_first = tl.where(is_v, first, normed_first * cosine - normed_second * sine)
    turned_second = tl.where(is_v, second, normed_second * cosine + normed_first * sine)

    q_address = q + (token * Q_HEADS + head) * (2 * HALF) + pair
    tl.store(q_address, turned_first.to(q.dtype.element_ty), mask=inside & is_q)
    tl.store(q_address + HALF, turned_second.to(q.dtype.element_ty), mask=inside & is_q)
    to_k = inside & (head >= Q_HEADS) & (head < Q_HEADS + KV_HEADS)
    k_address = k_cache + cache_row * cache_stride + (head - Q_HEADS) * (2 * HALF) + pair
    tl.store(k_address, turned_first.to(k_cache.dtype.element_ty), mask=to_k)
    tl.store(k_address + HALF, turned_second.to(k_cache.dtype.element_ty), mask=to_k)
    v_address = v_cache + cache_row * cache_stride + (head - Q_HEADS - KV_HEADS) * (2 * HALF) + pair
    tl.store(v_address, turned_first.to(v_cache.dtype.element_ty), mask=inside & is_v)
    tl.store(v_address + HALF, turned_second.to(v_cache.dtype.element_ty), mask=inside & is_v)


def plain_angles(cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    """cos, sin [T, 1, D] as `rotation_tables` makes them -> views [T, D/2] of unsigned values."""
    half = cos.shape[-1] // 2
    return cos[:, 0, :half], sin[:, 0, half:]


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
    k_cache, v_cache [N, Hkv, D]; cache_rows [T]; q_norm, k_norm [D]. Returns q [T, Hq, D].
    """
    tokens = qkv.shape[0]
    head_dim = k_cache.shape[-1]
    q = torch.empty(tokens, num_heads, head_dim, dtype=qkv.dtype, device=qkv.device)
    if tokens == 0:
        return q
    cos, sin = plain_angles(cos, sin)
    # One stride serves both tables and both caches.
    assert cos.stride() == sin.stride() and k_cache.stride() == v_cache.stride()
    assert k_cache.stride()[1:] == (head_dim, 1) and qkv.stride(1) == cos.stride(1) == 1
    heads = num_heads + 2 * num_kv_heads
    block_half = triton.next_power_of_2(head_dim // 2)
    block_heads = max(1, min(triton.next_power_of_2(heads), _TILE // (2 * block_half)))
    early = launches_early(qkv.device)
    norm = q_norm is not None and k_norm is not None
    _rope_cache_kernel[(tokens, triton.cdiv(heads, block_heads))](
        qkv,
        cos,
        sin,
        q,
        k_cache,
        v_cache,
        cache_rows,
        angle_rows,
        q_norm if norm else qkv,
        k_norm if norm else qkv,
        qkv.stride(0),
        cos.stride(0),
        k_cache.stride(0),
        eps,
        Q_HEADS=num_heads,
        KV_HEADS=num_kv_heads,
        HALF=head_dim // 2,
        BLOCK_HEADS=block_heads,
        BLOCK_HALF=block_half,
        NORM=norm,
        PDL=early,
        num_warps=4,
        **launch_options(early),
    )
    return q
