"""The main-cache write against a float64 formula."""

import math

import pytest
import torch

from dspark.kernels.main_cache import write_main_cache
from dspark.kernels.rope_cache import rotation_tables


@pytest.mark.parametrize("tokens", [1, 7, 63])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
def test_writes_normed_rotated_keys_and_raw_values(tokens, dtype):
    torch.manual_seed(tokens)
    layers, heads, head_dim, rows, eps = 3, 2, 16, 90, 1e-6
    kv = torch.randn(tokens, layers, 2, heads, head_dim).to(dtype)
    k_norm = torch.rand(layers, head_dim).to(dtype) + 0.5
    angles = torch.rand(tokens, head_dim // 2) * 40
    cache_rows = torch.randperm(rows)[:tokens]
    k_cache = torch.full((layers, rows, heads, head_dim), math.nan, dtype=dtype)
    v_cache = k_cache.clone()
    write_main_cache(
        kv, *rotation_tables(angles), k_norm=k_norm, k_cache=k_cache, v_cache=v_cache, cache_rows=cache_rows, eps=eps
    )
    key = kv[:, :, 0].double()
    key = key / (key.square().mean(-1, keepdim=True) + eps).sqrt() * k_norm.double()[None, :, None]
    # Each pair (i, i + D/2) is a complex number turned by its angle.
    turned = torch.complex(key[..., : head_dim // 2], key[..., head_dim // 2 :])
    turned = turned * torch.polar(torch.ones_like(angles), angles).to(turned.dtype)[:, None, None]
    expected = torch.cat((turned.real, turned.imag), -1).transpose(0, 1)
    tolerance = 1e-5 if dtype == torch.float32 else 2e-2
    torch.testing.assert_close(k_cache[:, cache_rows].double(), expected, atol=tolerance, rtol=tolerance)
    assert torch.equal(v_cache[:, cache_rows], kv[:, :, 1].transpose(0, 1))
    others = torch.ones(rows, dtype=torch.bool)
    others[cache_rows] = False
    assert k_cache[:, others].isnan().all() and v_cache[:, others].isnan().all()
