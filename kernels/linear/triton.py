"""Matrix products on the GPU: few rows in launches of our own, by `choose_tile`; everything else goes to cuBLAS."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from dspark.kernels.activation.triton import silu_mul
from dspark.kernels.linear.tiles import CoreTile, choose_tile
from dspark.kernels.norm.triton import rms_norm
from dspark.kernels.pdl import await_inputs, launch_options, launches_early


@triton.jit(do_not_specialize=["num_rows"])
def _stream_kernel(
    x, weight, bias, norm_weight, out, num_rows, x_stride, out_stride, eps,
    N: tl.constexpr, K: tl.constexpr, NORM: tl.constexpr, BIAS: tl.constexpr, GATED: tl.constexpr, ADD: tl.constexpr,
    BLOCK_T: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """All rows by BLOCK_N columns. Sums stay with the threads that load the weight and are reduced once, at the end."""
    row = tl.arange(0, BLOCK_T)
    column = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    lane = tl.arange(0, BLOCK_K)[None, None, :]
    x_row = x + row[:, None, None] * x_stride
    w_row = weight + column[None, :, None].to(tl.int64) * K
    w_inside = (column < N)[None, :, None]
    wide = tl.zeros([BLOCK_T, BLOCK_N, BLOCK_K], dtype=tl.float32)
    wide_up = tl.zeros([BLOCK_T, BLOCK_N, BLOCK_K], dtype=tl.float32)
    squares = tl.zeros([BLOCK_T, 1, BLOCK_K], dtype=tl.float32)
    # A tile of the weight is always on its way: the first one already before x is there.
    w = tl.load(w_row + lane, mask=w_inside & (lane < K), other=0.0)  # [1, BLOCK_N, BLOCK_K]
    w_up = w
    if GATED:
        w_up = tl.load(w_row + N * K + lane, mask=w_inside & (lane < K), other=0.0)
    gain = lane.to(tl.float32)
    if NORM:
        gain = tl.load(norm_weight + lane, mask=lane < K, other=0.0).to(tl.float32)
    await_inputs(PDL)
    inside = (row < num_rows)[:, None] & (column < N)[None, :]
    address = out + row[:, None].to(tl.int64) * out_stride + column[None, :]
    before = tl.zeros([BLOCK_T, BLOCK_N], tl.float32)
    if ADD:
        before = tl.load(address, mask=inside, other=0.0).to(tl.float32)
    for start in tl.range(0, K, BLOCK_K, num_stages=1):
        k = start + lane
        value = tl.load(x_row + k, mask=(row < num_rows)[:, None, None] & (k < K), other=0.0).to(tl.float32)
        ahead = k + BLOCK_K
        next_w = tl.load(w_row + ahead, mask=w_inside & (ahead < K), other=0.0)
        next_up = next_w
        if GATED:
            next_up = tl.load(w_row + N * K + ahead, mask=w_inside & (ahead < K), other=0.0)
        next_gain = gain
        if NORM:
            next_gain = tl.load(norm_weight + ahead, mask=ahead < K, other=0.0).to(tl.float32)
        if NORM:
            squares += value * value
            value = value * gain
        wide += value * w.to(tl.float32)
        if GATED:
            wide_up += value * w_up.to(tl.float32)
        w = next_w
        w_up = next_up
        gain = next_gain

    acc = tl.sum(wide, axis=2)  # [BLOCK_T, BLOCK_N]
    up = tl.sum(wide_up, axis=2)
    if NORM:
        # A row's scale leaves the sum over K, so that the row is read once.
        scale = tl.rsqrt(tl.sum(tl.sum(squares, axis=2), axis=1) / K + eps)[:, None]
        acc = acc * scale
        up = up * scale
    if BIAS:
        acc += tl.load(bias + column, mask=column < N, other=0.0).to(tl.float32)[None, :]
    if GATED:
        if BIAS:
            up += tl.load(bias + N + column, mask=column < N, other=0.0).to(tl.float32)[None, :]
        acc = acc / (1.0 + tl.exp(-acc)) * up
    if ADD:
        acc += before
    tl.store(address, acc.to(out.dtype.element_ty), mask=inside)


@triton.jit(do_not_specialize=["num_rows"])
def _core_kernel(
    x, weight, bias, norm_weight, out, num_rows, x_stride, out_stride, eps,
    N: tl.constexpr, K: tl.constexpr, NORM: tl.constexpr, BIAS: tl.constexpr, GATED: tl.constexpr, ADD: tl.constexpr,
    BLOCK_T: tl.constexpr, BLOCK_N: tl.constexpr, PARTS: tl.constexpr, BLOCK_K: tl.constexpr, STAGES: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    """The same on tensor cores. Warps share K in PARTS: a program's columns are too few for all of them.

    NORM: the first step is the whole width.
    """
    STEP: tl.constexpr = PARTS * BLOCK_K
    tl.static_assert(not NORM or K <= STEP)
    row = tl.arange(0, BLOCK_T)
    column = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    # [PARTS, 1, BLOCK_K]
    lane = tl.arange(0, PARTS)[:, None, None] * BLOCK_K + tl.arange(0, BLOCK_K)[None, None, :]
    x_row = x + row[None, :, None] * x_stride
    x_inside = (row < num_rows)[None, :, None]
    w_row = weight + column[None, :, None].to(tl.int64) * K
    w_inside = (column < N)[None, :, None]
    parts = tl.zeros([PARTS, BLOCK_N, BLOCK_T], dtype=tl.float32)
    up_parts = tl.zeros([PARTS, BLOCK_N, BLOCK_T], dtype=tl.float32)
    # The first step of the weight is on its way before x is there; it is multiplied last, behind the pipeline's steps.
    first_w = tl.load(w_row + lane, mask=w_inside & (lane < K), other=0.0)  # [PARTS, BLOCK_N, BLOCK_K]
    first_up = first_w
    if GATED:
        first_up = tl.load(w_row + N * K + lane, mask=w_inside & (lane < K), other=0.0)
    first_gain = lane.to(tl.float32)
    if NORM:
        first_gain = tl.load(norm_weight + lane, mask=lane < K, other=0.0).to(tl.float32)
    await_inputs(PDL)
    inside = (row < num_rows)[None, :] & (column < N)[:, None]
    address = out + row[None, :].to(tl.int64) * out_stride + column[:, None]
    before = tl.zeros([BLOCK_N, BLOCK_T], tl.float32)
    if ADD:
        before = tl.load(address, mask=inside, other=0.0).to(tl.float32)
    first = tl.load(x_row + lane, mask=x_inside & (lane < K), other=0.0)
    if K > STEP:
        for start in tl.range(STEP, K, STEP, num_stages=STAGES):
            k = start + lane
            w = tl.load(w_row + k, mask=w_inside & (k < K), other=0.0)
            value = tl.load(x_row + k, mask=x_inside & (k < K), other=0.0)
            turned = tl.permute(value, (0, 2, 1))  # [PARTS, BLOCK_K, BLOCK_T]
            parts = tl.dot(w, turned, parts)
            if GATED:
                w_up = tl.load(w_row + N * K + k, mask=w_inside & (k < K), other=0.0)
                up_parts = tl.dot(w_up, turned, up_parts)
    wide = first.to(tl.float32)
    squares = wide * wide
    if NORM:
        first = (wide * first_gain).to(first.dtype)
    turned_first = tl.permute(first, (0, 2, 1))
    parts = tl.dot(first_w, turned_first, parts)
    if GATED:
        up_parts = tl.dot(first_up, turned_first, up_parts)

    acc = tl.sum(parts, axis=0)  # [BLOCK_N, BLOCK_T]
    up = tl.sum(up_parts, axis=0)
    if NORM:
        scale = tl.rsqrt(tl.sum(tl.sum(squares, axis=2), axis=0) / K + eps)[None, :]
        acc = acc * scale
        up = up * scale
    if BIAS:
        acc += tl.load(bias + column, mask=column < N, other=0.0).to(tl.float32)[:, None]
    if GATED:
        if BIAS:
            up += tl.load(bias + N + column, mask=column < N, other=0.0).to(tl.float32)[:, None]
        acc = acc / (1.0 + tl.exp(-acc)) * up
    if ADD:
        acc += before
    tl.store(address, acc.to(out.dtype.element_ty), mask=inside)


def linear(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    *,
    residual: Tensor | None = None,
    norm_weight: Tensor | None = None,
    eps: float = 1e-6,
    activation: str | None = None,
    out_dtype: torch.dtype | None = None,
) -> Tensor:
    """x [T, K], weight [N, K], bias [N] -> [T, N] in `out_dtype` (x's if None).

    `norm_weight` [K]: x is RMS-normalised first. `residual` [T, N]: y is added to it in place and it is returned; it
    must not be x. `activation` "silu_mul": weight [2I, K] holds gate rows, then up rows; y = silu(gate) * up [T, I].
    """
    gated = activation == "silu_mul"
    if activation is not None and not gated:
        raise ValueError(f"activation {activation!r} is not known; use 'silu_mul' or None")
    rows, width = x.shape
    assert x.dtype == weight.dtype and x.stride(1) == 1 and weight.is_contiguous()
    # Other programs still read x while the first ones write.
    assert rows == 0 or residual is None or residual.data_ptr() != x.data_ptr()
    tile = choose_tile(rows, weight.shape[0], width, gated, x.dtype)
    if norm_weight is not None and (tile is None or not tile.fuses_norm):
        x = rms_norm(x, norm_weight, eps=eps)
        norm_weight = None
    if tile is None:
        return _matrix_product(x, weight, bias, residual, gated, out_dtype or x.dtype)

    columns = weight.shape[0] // 2 if gated else weight.shape[0]
    out = residual
    if out is None:
        out = torch.empty(rows, columns, dtype=out_dtype or x.dtype, device=x.device)
    assert out.stride(1) == 1
    early = launches_early(x.device)
    kernel = _core_kernel if isinstance(tile, CoreTile) else _stream_kernel
    kernel[(triton.cdiv(columns, tile.block_n),)](
        x,
        weight,
        weight if bias is None else bias,
        weight if norm_weight is None else norm_weight,
        out,
        rows,
        x.stride(0),
        out.stride(0),
        eps,
        N=columns,
        K=width,
        NORM=norm_weight is not None,
        BIAS=bias is not None,
        GATED=gated,
        ADD=residual is not None,
        PDL=early,
        **tile.constants(rows),
        **launch_options(early),
    )
    return out


def _matrix_product(
    x: Tensor, weight: Tensor, bias: Tensor | None, residual: Tensor | None, gated: bool, out_dtype: torch.dtype
) -> Tensor:
    if residual is not None and not gated:
        if bias is not None:
            residual += bias
        # The addition is the product's own epilogue.
        return residual.addmm_(x, weight.t())
    if out_dtype != x.dtype and bias is None and not gated:
        return torch.mm(x, weight.t(), out_dtype=out_dtype)
    y = torch.mm(x, weight.t()) if bias is None else torch.addmm(bias, x, weight.t())
    if gated:
        y = silu_mul(y)
    return y.to(out_dtype) if residual is None else residual.add_(y)
