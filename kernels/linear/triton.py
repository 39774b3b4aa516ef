"""Matrix products on the GPU: few rows stream a small weight in one fused launch, everything else goes to cuBLAS."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from dspark.kernels.activation.triton import silu_mul
from dspark.kernels.norm.triton import rms_norm

# Rows are multiplied element by element, which hides behind the reading of the weight only while they are this few ...
MAX_STREAMED_ROWS = 4
# ... and only pays while launches and latency, not bandwidth, decide. In elements of the weight.
MAX_STREAMED_WEIGHT = 4 << 20
# A single row costs so little arithmetic that it pays a while longer; gated, where it saves two launches, always.
MAX_SINGLE_ROW_WEIGHT = 12 << 20


@triton.jit(do_not_specialize=["num_rows"])
def _linear_kernel(
    x, weight, bias, norm_weight, out, num_rows, x_stride, out_stride, eps,
    N: tl.constexpr, K: tl.constexpr, NORM: tl.constexpr, BIAS: tl.constexpr, GATED: tl.constexpr, ADD: tl.constexpr,
    BLOCK_T: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """All rows by BLOCK_N columns. Sums stay with the threads that load the weight and are reduced once, at the end."""
    row = tl.arange(0, BLOCK_T)
    column = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    lane = tl.arange(0, BLOCK_K)[None, None, :]
    x_row = x + row[:, None, None] * x_stride
    w_row = weight + column[None, :, None].to(tl.int64) * K
    wide = tl.zeros([BLOCK_T, BLOCK_N, BLOCK_K], dtype=tl.float32)
    wide_up = tl.zeros([BLOCK_T, BLOCK_N, BLOCK_K], dtype=tl.float32)
    squares = tl.zeros([BLOCK_T, 1, BLOCK_K], dtype=tl.float32)
    for start in range(0, K, BLOCK_K):
        k = start + lane
        w_inside = (column < N)[None, :, None] & (k < K)
        w = tl.load(w_row + k, mask=w_inside, other=0.0)  # [1, BLOCK_N, BLOCK_K]
        value = tl.load(x_row + k, mask=(row < num_rows)[:, None, None] & (k < K), other=0.0).to(tl.float32)
        if NORM:
            squares += value * value
            value = value * tl.load(norm_weight + k, mask=k < K, other=0.0).to(tl.float32)
        wide += value * w.to(tl.float32)
        if GATED:
            wide_up += value * tl.load(w_row + N * K + k, mask=w_inside, other=0.0).to(tl.float32)

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
    inside = (row < num_rows)[:, None] & (column < N)[None, :]
    address = out + row[:, None].to(tl.int64) * out_stride + column[None, :]
    if ADD:
        acc += tl.load(address, mask=inside, other=0.0).to(tl.float32)
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
    if not _streams(rows, weight.numel(), gated):
        if norm_weight is not None:
            x = rms_norm(x, norm_weight, eps=eps)
        return _matrix_product(x, weight, bias, residual, gated, out_dtype or x.dtype)

    columns = weight.shape[0] // 2 if gated else weight.shape[0]
    out = residual
    if out is None:
        out = torch.empty(rows, columns, dtype=out_dtype or x.dtype, device=x.device)
    assert out.stride(1) == 1
    block_t, block_n, block_k, num_warps = _tile(rows, weight.shape[0], width, gated)
    _linear_kernel[(triton.cdiv(columns, block_n),)](
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
        BLOCK_T=block_t,
        BLOCK_N=block_n,
        BLOCK_K=block_k,
        num_warps=num_warps,
    )
    return out


def _streams(rows: int, weight_elements: int, gated: bool) -> bool:
    if rows == 1:
        return gated or weight_elements <= MAX_SINGLE_ROW_WEIGHT
    return 0 < rows <= MAX_STREAMED_ROWS and weight_elements <= MAX_STREAMED_WEIGHT


def _tile(rows: int, weight_rows: int, width: int, gated: bool) -> tuple[int, int, int, int]:
    """BLOCK_T, BLOCK_N, BLOCK_K and warps: four weight rows a program, more where that still leaves 4096 programs."""
    block_t = triton.next_power_of_2(rows)
    taken = 4
    while taken < 16 and weight_rows // taken > 4096:
        taken *= 2
    # 64 accumulators a thread: wide steps keep enough loads in flight without a pipeline.
    num_warps = 4 if block_t == 1 else 8
    block_k = min(triton.next_power_of_2(width), 64 * 32 * num_warps // (taken * block_t))
    return block_t, taken // 2 if gated else taken, block_k, num_warps


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
