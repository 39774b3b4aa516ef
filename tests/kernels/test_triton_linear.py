"""The fused matrix product against its reference, on both sides of every switch of method."""

import pytest
import torch
from torch.testing import assert_close

TOLERANCE = {torch.float32: 1e-4, torch.float16: 4e-3, torch.bfloat16: 3e-2}
EPILOGUES = ["plain", "norm", "bias", "residual", "silu_mul", "norm_silu_mul", "norm_bias_residual"]
FULL_EPILOGUES = ["norm_silu_mul", "norm_bias_residual"]
# (rows N, width K): a multiple of every block; a remainder in both; SmolLM2's QKV and output; wide core tiles;
# the width of SmolLM2's down product.
SHAPES = {
    "even": (32, 64),
    "odd": (39, 88),
    "qkv": (960, 576),
    "output": (576, 576),
    "wide": (2120, 88),
    "down": (40, 1536),
}


def run(device, rows: int, shape, epilogue: str, dtype, *, out_dtype=None) -> None:
    from dspark.kernels.linear.reference import linear as reference
    from dspark.kernels.linear.triton import linear

    torch.manual_seed(rows)
    columns, width = shape
    gated = "silu_mul" in epilogue
    weight = (torch.randn(columns * (2 if gated else 1), width) * width**-0.5).to(dtype)
    wide = torch.full((rows, width + 8), float("nan"), dtype=dtype)
    wide[:, :width] = torch.randn(rows, width).to(dtype)
    arguments: dict[str, torch.Tensor] = {}
    if "norm" in epilogue:
        arguments["norm_weight"] = torch.randn(width).to(dtype)
    if "bias" in epilogue:
        arguments["bias"] = torch.randn(weight.shape[0]).to(dtype)
    if "residual" in epilogue:
        arguments["residual"] = torch.randn(rows, columns).to(dtype)
    moved = {name: value.to(device, copy=True) for name, value in arguments.items()}
    options = {"activation": "silu_mul" if gated else None, "out_dtype": out_dtype, "eps": 1e-5}
    expected = reference(wide[:, :width], weight, **arguments, **options)
    actual = linear(wide.to(device)[:, :width], weight.to(device), **moved, **options)
    assert actual.dtype == expected.dtype
    assert_close(actual.cpu(), expected, atol=TOLERANCE[dtype], rtol=TOLERANCE[dtype])
    if "residual" in epilogue:
        assert actual.data_ptr() == moved["residual"].data_ptr()


@pytest.mark.parametrize("epilogue", EPILOGUES)
@pytest.mark.parametrize("rows", [0, 1, 2, 3, 5, 9, 16, 17, 130])
def test_epilogues(device, rows: int, epilogue: str) -> None:
    run(device, rows, SHAPES["odd"], epilogue, torch.bfloat16)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
@pytest.mark.parametrize("epilogue", FULL_EPILOGUES)
@pytest.mark.parametrize("rows", [1, 3, 7])
def test_other_dtypes(device, rows: int, epilogue: str, dtype: torch.dtype) -> None:
    run(device, rows, SHAPES["odd"], epilogue, dtype)


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES.keys())
@pytest.mark.parametrize("rows", [1, 2, 4, 16])
def test_shapes(device, shape, rows: int) -> None:
    run(device, rows, shape, "norm", torch.bfloat16)


@pytest.mark.parametrize("rows", [1, 4, 8])
def test_full_precision_logits(device, rows: int) -> None:
    run(device, rows, SHAPES["even"], "norm", torch.bfloat16, out_dtype=torch.float32)


# Just above the smallest such weights: a remainder in both.
@pytest.mark.parametrize(("shape", "epilogue"), [((1028, 4104), "norm_bias_residual"), ((1028, 2056), "norm_silu_mul")])
@pytest.mark.parametrize("rows", [2, 5])
def test_large_weights_in_steps(device, rows: int, shape, epilogue: str) -> None:
    run(device, rows, shape, epilogue, torch.bfloat16)


@pytest.mark.gpu
@pytest.mark.parametrize("device", ["cuda"], indirect=True)
@pytest.mark.parametrize("epilogue", FULL_EPILOGUES)
@pytest.mark.parametrize("rows", [1, 2, 3, 5, 8, 16, 63, 100])
@pytest.mark.parametrize("shape", [(576, 1536), (1536, 576), (2560, 4096), (9728, 2560)], ids=str)
def test_model_shapes(device, shape, rows: int, epilogue: str) -> None:
    run(device, rows, shape, epilogue, torch.bfloat16)


@pytest.mark.gpu
@pytest.mark.parametrize("device", ["cuda"], indirect=True)
@pytest.mark.parametrize("rows", [1, 8, 64, 512])
def test_head(device, rows: int) -> None:
    run(device, rows, (49152, 576), "norm", torch.bfloat16, out_dtype=torch.float32)


def test_an_unknown_activation_is_refused(device) -> None:
    from dspark.kernels.linear.triton import linear

    with pytest.raises(ValueError, match="silu_mul"):
        linear(torch.ones(1, 16, device=device), torch.ones(16, 16, device=device), activation="gelu")
