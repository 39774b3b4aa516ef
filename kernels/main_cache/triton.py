"""The main-cache write on the GPU: K norm, RoPE and both cache writes of all draft layers in one launch."""

import triton
import triton.language as tl
from torch import Tensor

from dspark.kernels.rope_cache.triton import plain_angles


@triton.jit
def _main_cache_kernel(
    kv,
    cos,
    sin,
    k_norm,
    k_cache,
    v_cache,
    cache_rows,
    kv_stride,
    angle_stride,
    layer_stride,
    row_stride,
    eps,
    KV_HEADS: tl.constexpr,
    HALF: tl.constexpr,
    BLOCK_HEADS: tl.constexpr,
    BLOCK_HALF: tl.constexpr,
):
    token = tl.program_id(0).to(tl.int64)
    layer = tl.program_id(1).to(tl.int64)
    head = tl.arange(0, BLOCK_HEADS)[:, None]
    pair = tl.arange(0, BLOCK_HALF)[None, :]
    inside = (head < KV_HEADS) & (pair < HALF)
    width = KV_HEADS * 2 * HALF
    column = head * (2 * HALF) + pair
    source = kv + token * kv_stride + layer * (2 * width) + column
    first = tl.load(source, mask=inside, other=0.0).to(tl.float32)  # [Hkv, D/2]
    second = tl.load(source + HALF, mask=inside, other=0.0).to(tl.float32)
    value_first = tl.load(source + width, mask=inside, other=0.0)
    value_second = tl.load(source + width + HALF, mask=inside, other=0.0)

    gain = k_norm + layer * (2 * HALF) + pair
    cosine = tl.load(cos + token * angle_stride + pair, mask=pair < HALF, other=0.0)
    sine = tl.load(sin + token * angle_stride + pair, mask=pair < HALF, other=0.0)
    scale = tl.rsqrt((tl.sum(first * first, axis=1) + tl.sum(second * second, axis=1)) / (2 * HALF) + eps)[:, None]
    first = first * scale * tl.load(gain, mask=pair < HALF, other=0.0).to(tl.float32)
    second = second * scale * tl.load(gain + HALF, mask=pair < HALF, other=0.0).to(tl.float32)

    target = layer * layer_stride + tl.load(cache_rows + token).to(tl.int64) * row_stride + column
    tl.store(k_cache + target, (first * cosine - second * sine).to(k_cache.dtype.element_ty), mask=inside)
    tl.store(k_cache + target + HALF, (second * cosine + first * sine).to(k_cache.dtype.element_ty), mask=inside)
    tl.store(v_cache + target, value_first.to(v_cache.dtype.element_ty), mask=inside)
    tl.store(v_cache + target + HALF, value_second.to(v_cache.dtype.element_ty), mask=inside)


def write_main_cache(
    kv: Tensor,
    cos: Tensor,
    sin: Tensor,
    *,
    k_norm: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    cache_rows: Tensor,
    eps: float,
) -> None:
    """kv [T, Ld, 2, Hkv, D]; cos, sin [T, 1, D] fp32; k_norm [Ld, D]; caches [Ld, N, Hkv, D]; cache_rows [T] int64.

    K is normalised per head and rotated, V stored as it is. Rows of `cache_rows` may repeat only for padding.
    """
    tokens, layers, _, kv_heads, head_dim = kv.shape
    if tokens == 0:
        return
    cos, sin = plain_angles(cos, sin)
    # One stride serves both tables and both caches; only the token and row axes may be strided.
    assert cos.stride() == sin.stride() and cos.stride(1) == 1 and k_cache.stride() == v_cache.stride()
    assert kv[0].is_contiguous() and k_norm.is_contiguous() and k_cache.stride()[2:] == (head_dim, 1)
    _main_cache_kernel[(tokens, layers)](
        kv,
        cos,
        sin,
        k_norm,
        k_cache,
        v_cache,
        cache_rows,
        kv.stride(0),
        cos.stride(0),
        k_cache.stride(0),
        k_cache.stride(1),
        eps,
        KV_HEADS=kv_heads,
        HALF=head_dim // 2,
        BLOCK_HEADS=triton.next_power_of_2(kv_heads),
        BLOCK_HALF=triton.next_power_of_2(head_dim // 2),
        num_warps=4,
    )
