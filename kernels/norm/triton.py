"""RMSNorm on the GPU: one launch, one program a row, the residual addition fused in front of it."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from dspark.kernels.pdl import await_inputs, launch_options, launches_early


@triton.jit
def _rms_norm_kernel(
    x, weight, residual, out, x_stride, residual_stride, eps,
    WIDTH: tl.constexpr, BLOCK: tl.constexpr, ADD: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    inside = column < WIDTH
    gain = tl.load(weight + column, mask=inside, other=0.0).to(tl.float32)
    await_inputs(PDL)
    value = tl.load(x + row * x_stride + column, mask=inside, other=0.0)
    if ADD:
        address = residual + row * residual_stride + column
        value = value.to(tl.float32) + tl.load(address, mask=inside, other=0.0).to(tl.float32)
        # What later layers read is the rounded sum, so that is what gets normalised.
        value = value.to(residual.dtype.element_ty)
        tl.store(address, value, mask=inside)
    value = value.to(tl.float32)
    scale = tl.rsqrt(tl.sum(value * value, axis=0) / WIDTH + eps)
    tl.store(out + row * WIDTH + column, (value * scale * gain).to(out.dtype.element_ty), mask=inside)


def rms_norm(x: Tensor, weight: Tensor, *, eps: float, residual: Tensor | None = None) -> Tensor:
    """Normalise `x` [..., H] by `weight` [H]; `residual` [..., H]: add `x` to it in place and normalise the sum."""
    width = x.shape[-1]
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    rows = x.numel() // width
    if rows == 0:
        return out
    flat = x.reshape(rows, width)
    # A view, never a copy: the caller's residual has to change.
    stream = flat if residual is None else residual.view(rows, width)
    block = triton.next_power_of_2(width)
    early = launches_early(x.device)
    _rms_norm_kernel[(rows,)](
        flat,
        weight,
        stream,
        out,
        flat.stride(0),
        stream.stride(0),
        eps,
        WIDTH=width,
        BLOCK=block,
        ADD=residual is not None,
        PDL=early,
        num_warps=min(8, max(1, block // 512)),
        **launch_options(early),
    )
    return out
