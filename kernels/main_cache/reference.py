"""Context K/V of all draft layers, from one projection of the target's features."""

import torch
from torch import Tensor

from dspark.kernels.rope_cache.reference import rotate_half


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
    key = kv[:, :, 0].float()  # [T, Ld, Hkv, D]
    key = key * torch.rsqrt(key.square().mean(dim=-1, keepdim=True) + eps) * k_norm.float()[:, None]
    rotated = rotate_half(key.flatten(1, 2), cos, sin).view(key.shape).to(k_cache.dtype)
    value = kv[:, :, 1].to(v_cache.dtype)
    for layer in range(k_cache.shape[0]):
        k_cache[layer].index_copy_(0, cache_rows, rotated[:, layer])
        v_cache[layer].index_copy_(0, cache_rows, value[:, layer])
