"""Root-mean-square norm, optionally fused with the residual addition before it."""

import torch.nn.functional as F
from torch import Tensor


def rms_norm(x: Tensor, weight: Tensor, *, eps: float, residual: Tensor | None = None) -> Tensor:
    """Normalise `x` [..., H] by `weight` [H]; with `residual` [..., H], add `x` to it in place, normalise the sum."""
    if residual is not None:
        x = residual.add_(x)
    return F.rms_norm(x, weight.shape, weight, eps)
