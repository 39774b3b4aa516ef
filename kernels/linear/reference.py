"""y = act(norm(x) @ weight^T + bias), added to a residual if there is one."""

import torch
import torch.nn.functional as F
from torch import Tensor


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

    `norm_weight` [K]: x is RMS-normalised first. `residual` [T, N]: y is added to it in place and it is returned.
    `activation` "silu_mul": weight [2I, K] holds gate rows, then up rows; y = silu(gate) * up [T, I].
    """
    if norm_weight is not None:
        x = F.rms_norm(x, norm_weight.shape, norm_weight, eps)
    y = F.linear(x.float(), weight.float(), None if bias is None else bias.float())
    if activation == "silu_mul":
        gate, up = y.chunk(2, dim=-1)
        y = F.silu(gate) * up
    elif activation is not None:
        raise ValueError(f"activation {activation!r} is not known; use 'silu_mul' or None")
    if residual is not None:
        return residual.copy_(residual.float() + y)
    return y.to(out_dtype or x.dtype)
