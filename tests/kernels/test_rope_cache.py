import pytest
import torch
from torch.testing import assert_close

from dspark.kernels import rope_and_cache
from dspark.kernels.rope_cache import rotation_tables

TOLERANCE = {torch.float32: 1e-4, torch.bfloat16: 3e-2}


def exact_rotation(x: torch.Tensor, positions: torch.Tensor, frequencies: torch.Tensor) -> torch.Tensor:
    """Each pair (i, i + D/2) as a complex number times e^(i * angle). x [T, heads, D]."""
    first, second = x.double().chunk(2, dim=-1)
    angle = (positions[:, None].double() * frequencies.double())[:, None]
    turned = torch.complex(first, second) * torch.polar(torch.ones_like(angle), angle)
    return torch.cat((turned.real, turned.imag), dim=-1)


def exact_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    return x.double() / (x.double().square().mean(-1, keepdim=True) + eps).sqrt() * weight.double()


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("tokens", [1, 7])
@pytest.mark.parametrize(("heads", "kv_heads", "head_dim"), [(9, 3, 64), (4, 4, 10)])
@pytest.mark.parametrize("with_norms", [False, True], ids=["plain", "qk_norm"])
def test_rope_and_cache(
    dtype: torch.dtype, tokens: int, heads: int, kv_heads: int, head_dim: int, with_norms: bool
) -> None:
    torch.manual_seed(0)
    qkv = torch.randn(tokens, (heads + 2 * kv_heads) * head_dim).to(dtype)
    positions = torch.randperm(300)[:tokens]
    frequencies = 0.1 ** torch.linspace(0, 3, head_dim // 2)
    angles = positions[:, None].float() * frequencies
    k_cache = torch.full((20, kv_heads, head_dim), float("nan"), dtype=dtype)
    v_cache = k_cache.clone()
    cache_rows = torch.randperm(20)[:tokens]
    q_norm, k_norm = (torch.rand(head_dim).to(dtype) if with_norms else None for _ in range(2))
    q = rope_and_cache(
        qkv,
        *rotation_tables(angles),
        k_cache=k_cache,
        v_cache=v_cache,
        cache_rows=cache_rows,
        num_heads=heads,
        num_kv_heads=kv_heads,
        q_norm=q_norm,
        k_norm=k_norm,
        eps=1e-6,
    )
    exact_q, exact_k, v = qkv.view(tokens, -1, head_dim).split((heads, kv_heads, kv_heads), dim=1)
    if q_norm is not None and k_norm is not None:
        exact_q, exact_k = exact_norm(exact_q, q_norm, 1e-6), exact_norm(exact_k, k_norm, 1e-6)
    tolerance = {"atol": TOLERANCE[dtype], "rtol": TOLERANCE[dtype]}
    assert q.dtype == dtype
    assert_close(q.double(), exact_rotation(exact_q, positions, frequencies), **tolerance)
    assert_close(k_cache[cache_rows].double(), exact_rotation(exact_k, positions, frequencies), **tolerance)
    assert torch.equal(v_cache[cache_rows], v)
    untouched = torch.ones(20, dtype=torch.bool)
    untouched[cache_rows] = False
    assert k_cache[untouched].isnan().all() and v_cache[untouched].isnan().all()
