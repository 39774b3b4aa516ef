"""The norm, activation, RoPE and main-cache kernels against their references."""

import pytest
import torch
from torch.testing import assert_close

from dspark.kernels.rope_cache import rotation_tables

# Two roundings to the output's type apart, at values of a few units.
TOLERANCE = {torch.float32: 2e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}
DTYPES = pytest.mark.parametrize("dtype", TOLERANCE, ids=str)


def rows_of(rows: int, width: int, dtype: torch.dtype, *, gap: int = 8) -> torch.Tensor:
    """[rows, width] inside wider rows of NaN: a strided view."""
    wide = torch.full((rows, width + gap), float("nan"), dtype=dtype)
    wide[:, :width] = torch.randn(rows, width).to(dtype)
    return wide[:, :width]


def strided_copy(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    """A copy on `device` that keeps the row stride of a view (`Tensor.to` would close the gaps)."""
    wide = torch.empty(tensor.shape[0], tensor.stride(0), dtype=tensor.dtype, device=device)
    copy = wide[:, : tensor.shape[1]]
    return copy.copy_(tensor)


def close(actual: torch.Tensor, expected: torch.Tensor, dtype: torch.dtype) -> None:
    assert_close(actual.cpu(), expected, atol=TOLERANCE[dtype], rtol=TOLERANCE[dtype], equal_nan=True)


@DTYPES
@pytest.mark.parametrize("rows, width", [(1, 576), (7, 48), (63, 2560), (100, 96)])
@pytest.mark.parametrize("add", [False, True], ids=["plain", "residual"])
def test_rms_norm(device, rows: int, width: int, add: bool, dtype: torch.dtype) -> None:
    from dspark.kernels.norm.reference import rms_norm as reference
    from dspark.kernels.norm.triton import rms_norm

    if device.type == "cpu" and rows > 7:
        rows = 9
    torch.manual_seed(rows)
    x, weight = rows_of(rows, width, dtype), torch.randn(width).to(dtype)
    residual = rows_of(rows, width, dtype) if add else None
    moved = None if residual is None else strided_copy(residual, device)
    actual = rms_norm(strided_copy(x, device), weight.to(device), eps=1e-5, residual=moved)
    close(actual, reference(x, weight, eps=1e-5, residual=residual), dtype)
    if residual is not None and moved is not None:
        close(moved, residual, dtype)


@DTYPES
@pytest.mark.parametrize("rows, width", [(1, 1536), (7, 80), (63, 9728), (100, 24)])
def test_silu_mul(device, rows: int, width: int, dtype: torch.dtype) -> None:
    from dspark.kernels.activation.reference import silu_mul as reference
    from dspark.kernels.activation.triton import silu_mul

    if device.type == "cpu" and rows > 7:
        rows = 5
    torch.manual_seed(rows)
    gate_up = rows_of(rows, 2 * width, dtype)
    close(silu_mul(strided_copy(gate_up, device)), reference(gate_up), dtype)


@DTYPES
@pytest.mark.parametrize(
    "num_heads, num_kv_heads, head_dim", [(9, 3, 64), (32, 8, 128), (6, 2, 24)], ids=["smollm2", "qwen3", "odd"]
)
@pytest.mark.parametrize("qk_norm", [False, True], ids=["plain", "qk_norm"])
@pytest.mark.parametrize("tokens", [1, 7, 63, 100])
def test_rope_and_cache(device, tokens, num_heads, num_kv_heads, head_dim, qk_norm, dtype) -> None:
    from dspark.kernels.rope_cache.reference import rope_and_cache as reference
    from dspark.kernels.rope_cache.triton import rope_and_cache

    if device.type == "cpu" and tokens > 7:
        pytest.skip("too large for the interpreter")
    torch.manual_seed(tokens)
    qkv = torch.randn(tokens, (num_heads + 2 * num_kv_heads) * head_dim).to(dtype)
    cos, sin = rotation_tables(torch.rand(tokens, head_dim // 2) * 40)
    norms = [torch.randn(head_dim).to(dtype) if qk_norm else None for _ in range(2)]
    caches = [torch.full((128, num_kv_heads, head_dim), float("nan"), dtype=dtype) for _ in range(2)]
    cache_rows = torch.randperm(128)[:tokens]
    moved = [cache.to(device, copy=True) for cache in caches]
    heads = {"num_heads": num_heads, "num_kv_heads": num_kv_heads, "eps": 1e-6}
    expected = reference(
        qkv, cos, sin, k_cache=caches[0], v_cache=caches[1], cache_rows=cache_rows,
        q_norm=norms[0], k_norm=norms[1], **heads,
    )  # fmt: skip
    on_device = [None if norm is None else norm.to(device) for norm in norms]
    # A view of wider rows, as the first part of a fused projection's output would be.
    strided = torch.cat((qkv, torch.full_like(qkv[:, :8], float("nan"))), dim=1).to(device)[:, : qkv.shape[1]]
    actual = rope_and_cache(
        strided, cos.to(device), sin.to(device), k_cache=moved[0], v_cache=moved[1],
        cache_rows=cache_rows.to(device), q_norm=on_device[0], k_norm=on_device[1], **heads,
    )  # fmt: skip
    close(actual, expected, dtype)
    close(moved[0], caches[0], dtype)
    # V is moved, not computed: every bit of it, and of the rows that nobody names.
    assert_close(moved[1].cpu(), caches[1], atol=0, rtol=0, equal_nan=True)


@DTYPES
@pytest.mark.parametrize("layers, kv_heads, head_dim", [(5, 8, 128), (2, 3, 64), (1, 2, 24)])
@pytest.mark.parametrize("tokens", [1, 7, 63])
def test_write_main_cache(device, tokens: int, layers: int, kv_heads: int, head_dim: int, dtype) -> None:
    from dspark.kernels.main_cache.reference import write_main_cache as reference
    from dspark.kernels.main_cache.triton import write_main_cache

    if device.type == "cpu" and tokens > 7:
        pytest.skip("too large for the interpreter")
    torch.manual_seed(tokens)
    kv = torch.randn(tokens, layers, 2, kv_heads, head_dim).to(dtype)
    k_norm = torch.randn(layers, head_dim).to(dtype)
    cos, sin = rotation_tables(torch.rand(tokens, head_dim // 2) * 40)
    cache_rows = torch.randperm(80)[:tokens]
    caches = [torch.full((layers, 80, kv_heads, head_dim), float("nan"), dtype=dtype) for _ in range(2)]
    moved = [cache.to(device, copy=True) for cache in caches]
    reference(kv, cos, sin, k_norm=k_norm, k_cache=caches[0], v_cache=caches[1], cache_rows=cache_rows, eps=1e-6)
    write_main_cache(
        kv.to(device), cos.to(device), sin.to(device), k_norm=k_norm.to(device),
        k_cache=moved[0], v_cache=moved[1], cache_rows=cache_rows.to(device), eps=1e-6,
    )  # fmt: skip
    close(moved[0], caches[0], dtype)
    assert_close(moved[1].cpu(), caches[1], atol=0, rtol=0, equal_nan=True)
