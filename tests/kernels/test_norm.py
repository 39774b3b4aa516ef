import pytest
import torch
from torch.testing import assert_close

from dspark.kernels import rms_norm, silu_mul

TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 2e-2}


def exact_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    x, weight = x.double(), weight.double()
    return x / (x.square().mean(-1, keepdim=True) + eps).sqrt() * weight


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("shape", [(1, 576), (7, 100), (3, 5, 64)], ids=str)
@pytest.mark.parametrize("with_residual", [False, True], ids=["plain", "residual"])
def test_rms_norm(dtype: torch.dtype, shape: tuple[int, ...], with_residual: bool) -> None:
    torch.manual_seed(0)
    x, residual = torch.randn(shape).to(dtype), torch.randn(shape).to(dtype)
    weight = torch.rand(shape[-1]).to(dtype)
    total = x + residual if with_residual else x
    out = rms_norm(x, weight, eps=1e-5, residual=residual if with_residual else None)
    assert out.dtype == dtype
    assert_close(out.double(), exact_norm(total, weight, 1e-5), atol=TOLERANCE[dtype], rtol=TOLERANCE[dtype])
    if with_residual:
        assert torch.equal(residual, total)


def test_rms_norm_of_small_values_uses_eps() -> None:
    x = torch.full((1, 8), 1e-4)
    assert_close(
        rms_norm(x, torch.ones(8), eps=1e-5).double(), exact_norm(x, torch.ones(8), 1e-5), atol=1e-7, rtol=1e-5
    )


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
def test_silu_mul(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    gate_up = torch.randn(5, 2 * 63).to(dtype)
    gate, up = gate_up.double().chunk(2, dim=-1)
    out = silu_mul(gate_up)
    assert out.dtype == dtype
    assert_close(out.double(), gate * gate.sigmoid() * up, atol=TOLERANCE[dtype], rtol=TOLERANCE[dtype])
