"""Linear layers by weight format, the embedding, and the head that returns fp32 logits."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from dspark.engine.errors import UsageError
from dspark.kernels import linear, rms_norm, silu_mul

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
DTYPE_NAMES = (*DTYPES, "int8")


@dataclass(frozen=True, slots=True)
class WeightFormat:
    """How weights are stored, and the dtype of activations and cache."""

    activation: torch.dtype
    int8: bool
    device: torch.device

    @classmethod
    def of(cls, dtype: str, device: torch.device) -> WeightFormat:
        """`float32`, `bfloat16`, `float16`, or `int8`: int8 weights, bfloat16 activations (CPU only)."""
        if dtype not in DTYPE_NAMES:
            raise UsageError(f"unknown dtype `{dtype}`", f"Use one of: {', '.join(DTYPE_NAMES)}.")
        if dtype == "int8" and device.type != "cpu":
            raise UsageError("dtype int8 runs on the CPU only", "Use bfloat16 on a GPU.")
        return cls(activation=DTYPES.get(dtype, torch.bfloat16), int8=dtype == "int8", device=device)


class PackedWeight:
    """A weight in oneDNN's own layout: half the time of a plain matmul for few rows on a CPU.

    Made and multiplied by private operations of torch, tried with 2.11 (on GPU machines) and 2.13 (on CPUs); a build
    without them takes the plain matmul.
    """

    __slots__ = ("_weight", "bias", "repeat_single_row")

    # One layout serves every number of rows; this hint gave the best all-round one.
    ROWS_HINT = 16
    _OPERATIONS = ("_reorder_linear_weight", "_linear_pointwise", "_is_mkldnn_bf16_supported")

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        self._weight = torch.ops.mkldnn._reorder_linear_weight(weight.contiguous(), self.ROWS_HINT)
        self.bias = bias
        # For some shapes oneDNN adds up a single row in another order than many, and a text would depend on its batch.
        probe = torch.randn(2, weight.shape[1], generator=torch.Generator().manual_seed(0)).to(weight.dtype)
        self.repeat_single_row = False
        self.repeat_single_row = not torch.equal(self(probe[:1]), self(probe)[:1])

    @staticmethod
    def supports(dtype: torch.dtype, device: torch.device) -> bool:
        """Can products on `device` in `dtype` take packed weights here?"""
        if device.type != "cpu" or not torch.backends.mkldnn.is_available():
            return False
        if not all(hasattr(torch.ops.mkldnn, name) for name in PackedWeight._OPERATIONS):
            return False
        return dtype == torch.float32 or (
            dtype == torch.bfloat16 and bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
        )

    def __call__(self, x: Tensor) -> Tensor:
        """x [T, in] -> [T, out]."""
        single = self.repeat_single_row and x.shape[0] == 1
        if single:
            x = x.expand(2, -1)
        y: Tensor = torch.ops.mkldnn._linear_pointwise.default(x, self._weight, self.bias, "none", [], "")
        return y[:1] if single else y


class Linear:
    """y = x W^T + b. Rows are loaded part by part, so that fused projections never exist twice; then `pack`.

    Of an int8 weight `pack` keeps a bfloat16 copy beside the int8 rows where oneDNN supports bfloat16, 3 bytes a weight
    together: up to 8 rows of x the int8 rows are faster, for they are half as much to read; beyond (prefill,
    verification of a larger batch) time goes into arithmetic, which is faster in bfloat16.
    """

    __slots__ = ("bias", "format", "packed", "scales", "weight")

    # Up to so many rows of x the int8 weights are read as they are; beyond, the copy is.
    MOST_INT8_ROWS = 8

    def __init__(self, in_features: int, out_features: int, *, bias: bool, format: WeightFormat) -> None:
        self.format = format
        stored = torch.int8 if format.int8 else format.activation
        # [out, in]; None once only the packed form is left.
        self.weight: Tensor | None = torch.empty(out_features, in_features, dtype=stored, device=format.device)
        # Symmetric, one scale an output channel.
        self.scales = torch.empty(out_features, dtype=format.activation) if format.int8 else None
        self.bias = torch.empty(out_features, dtype=format.activation, device=format.device) if bias else None
        self.packed: PackedWeight | None = None

    def load_rows(self, start: int, weight: Tensor, bias: Tensor | None = None) -> None:
        """Store `weight` [rows, in] and `bias` [rows] as output channels `start` onwards."""
        assert self.weight is not None
        rows = slice(start, start + weight.shape[0])
        if self.scales is None:
            self.weight[rows].copy_(weight)
        else:
            scales = (weight.float().abs().amax(dim=1) / 127).clamp_min_(1e-12).to(self.scales.dtype)
            self.scales[rows].copy_(scales)
            self.weight[rows].copy_((weight / scales.float()[:, None]).round_().clamp_(-127, 127))
        if self.bias is not None and bias is not None:
            self.bias[rows].copy_(bias)

    def pack(self) -> None:
        """After the last row: take the layout that computes fastest on this device."""
        assert self.weight is not None
        if not PackedWeight.supports(self.format.activation, self.format.device):
            return
        if self.scales is None:
            self.packed = PackedWeight(self.weight, self.bias)
            self.weight = None
        else:
            self.packed = PackedWeight(self.weight * self.scales[:, None], self.bias)

    def __call__(
        self,
        x: Tensor,
        *,
        norm: Tensor | None = None,
        eps: float = 1e-6,
        residual: Tensor | None = None,
        activation: str | None = None,
    ) -> Tensor:
        """x [T, in] -> [T, out] in the activation dtype, with what stands around the product in a layer.

        norm [in]: x is RMS-normalised by it first. activation `silu_mul`: out holds gate and up, the result is
        silu(gate) * up. residual [T, out]: the result is added to it in place, and it is returned.
        """
        if x.is_cuda:
            assert self.weight is not None
            return linear(
                x, self.weight, self.bias, residual=residual, norm_weight=norm, eps=eps, activation=activation
            )
        y = self._product(x if norm is None else rms_norm(x, norm, eps=eps))
        if activation is not None:
            y = silu_mul(y)
        return y if residual is None else residual.add_(y)

    def _product(self, x: Tensor) -> Tensor:
        if self.scales is not None and (self.packed is None or x.shape[0] <= self.MOST_INT8_ROWS):
            y: Tensor = torch.ops.aten._weight_int8pack_mm(x, self.weight, self.scales)
            return y if self.bias is None else y.add_(self.bias)
        if self.packed is not None:
            return self.packed(x)
        assert self.weight is not None
        return F.linear(x, self.weight, self.bias)


class Embedding:
    """Token rows; the table may be shared with the head and then be wider than the activations."""

    __slots__ = ("activation", "weight")

    def __init__(self, weight: Tensor, activation: torch.dtype) -> None:
        self.weight = weight  # [V, H]
        self.activation = activation

    def __call__(self, token_ids: Tensor) -> Tensor:
        """token_ids [...] -> a new tensor [..., H]."""
        rows = self.weight.index_select(0, token_ids.reshape(-1)).to(self.activation)
        return rows.view(*token_ids.shape, -1)


class Head:
    """Hidden states -> fp32 logits: narrower ones tie (bf16 logits between 16 and 32 are 0.125 apart)."""

    __slots__ = ("_packed", "weight")

    def __init__(self, weight: Tensor) -> None:
        self.weight = weight  # [V, H], of `storage_dtype`
        packs = PackedWeight.supports(weight.dtype, weight.device)
        self._packed = PackedWeight(weight, None) if packs else None

    @staticmethod
    def storage_dtype(format: WeightFormat) -> torch.dtype:
        """fp32 on a CPU, whatever the other weights are: its matmuls have no fp32 output of narrow inputs."""
        return torch.float32 if format.device.type == "cpu" else format.activation

    def __call__(self, hidden: Tensor, out: Tensor | None = None) -> Tensor:
        """hidden [n, H] -> logits [n, V] fp32, written into `out` if it is given."""
        if self._packed is not None:
            logits = self._packed(hidden.float())
            return logits if out is None else out.copy_(logits)
        weight = self.weight.t()
        if weight.dtype == torch.float32:
            return torch.mm(hidden.float(), weight, out=out)
        if out is None:
            return torch.mm(hidden, weight, out_dtype=torch.float32)
        return torch.mm(hidden, weight, out_dtype=torch.float32, out=out)
