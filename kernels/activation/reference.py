"""The gated activation of the Llama family's MLP."""

import torch.nn.functional as F
from torch import Tensor


def silu_mul(gate_up: Tensor) -> Tensor:
    """gate_up [T, 2I] (gate first, then up) -> silu(gate) * up [T, I]."""
    intermediate = gate_up.shape[-1] // 2
    return F.silu(gate_up[..., :intermediate]).mul_(gate_up[..., intermediate:])
