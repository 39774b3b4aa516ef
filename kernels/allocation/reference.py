"""Lengths of a round from confidence logits, in plain torch.

`dspark.engine.scheduler.allocation` fills budgets by the same rule on the host. Candidates are ranked by -log survival
in fixed point. Every operation on the way to it is exactly rounded and sums of integers have no order, so that every
device ranks them the same.
"""

import torch
from torch import Tensor

_UNITS_PER_NAT = 2.0**20
_LARGEST_LOGIT = 64.0
# From here on survival counts as 0. Up to 31 positions add up without an overflow.
_HAZARD_LIMIT = int(_LARGEST_LOGIT * _UNITS_PER_NAT)
_LOG2_E = 1.4426950408889634
_LN2_HIGH, _LN2_LOW = 0.693359375, -2.12194440e-4


def allocate_lengths(
    confidence_logits: Tensor,
    caps: Tensor,
    *,
    temperatures: Tensor,
    budget: Tensor,
    out: Tensor,
) -> None:
    """confidence_logits [R, G] fp32; caps [R] int64, below 1 for a request without candidates; temperatures [G] fp32.

    Writes to out [R] int64 how many drafted tokens of each request are among the first `budget` [1] int64 of all
    candidates: those within the caps whose survival is above 0, the likeliest first; of equals the lower request, then
    the lower position.
    """
    hazard = _hazards(confidence_logits.float() / temperatures)
    within = torch.arange(hazard.shape[1], device=hazard.device) < caps[:, None]
    candidate = (within & (hazard < _HAZARD_LIMIT)).flatten()
    key = torch.where(candidate, hazard.flatten().long(), 2 * _HAZARD_LIMIT)
    rank = torch.empty_like(key)
    rank[key.argsort(stable=True)] = torch.arange(len(key), device=key.device)
    out.copy_((candidate & (rank < budget)).view(hazard.shape).sum(dim=1))


def _hazards(scaled: Tensor) -> Tensor:
    """Calibrated logits [R, G] fp32 -> -log survival in fixed point, int32; a logit that is NaN ends its row."""
    x = torch.where(scaled.isnan(), -_LARGEST_LOGIT, scaled).clamp(-_LARGEST_LOGIT, _LARGEST_LOGIT)
    y = x.abs()
    n = (y * _LOG2_E + 0.5).floor()
    r = (y - n * _LN2_HIGH) - n * _LN2_LOW
    series = 1.0 - r * (1 / 7)
    for k in range(6, 0, -1):
        series = 1.0 - (r * (1 / k)) * series
    t = series * ((127 - n.int()) << 23).view(torch.float32)  # e^-|x|
    s = t / (t + 2.0)
    square = s * s
    series = torch.full_like(s, 1 / 13)
    for k in range(11, 0, -2):
        series = series * square + 1 / k
    softplus = (-x).clamp(min=0) + (s * 2.0) * series
    steps = (softplus * _UNITS_PER_NAT + 0.5).floor().int()
    return steps.cumsum(dim=1, dtype=torch.int32).clamp(max=_HAZARD_LIMIT)
