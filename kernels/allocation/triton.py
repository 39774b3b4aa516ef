"""Lengths of a round from confidence logits: one launch, one program a request, which counts its candidates' ranks.

Every program ranks its own few candidates against all others and needs nothing from the other programs: no sort, no
scratch memory, no second launch. For 512 requests of 7 that is 13 million comparisons.
"""

import triton
import triton.language as tl
from torch import Tensor

_UNITS_PER_NAT = tl.constexpr(2.0**20)
_LARGEST_LOGIT = tl.constexpr(64.0)
_HAZARD_LIMIT = tl.constexpr(64 * 2**20)
_LOG2_E = tl.constexpr(1.4426950408889634)
_LN2_HIGH = tl.constexpr(0.693359375)
_LN2_LOW = tl.constexpr(-2.12194440e-4)
_BLOCK = 4096  # candidates of others held at once


@triton.jit
def _hazard_step(scaled):
    """Calibrated logits fp32 -> -log confidence in fixed point: the operations of reference.py, one for one."""
    x = tl.where(scaled == scaled, scaled, -_LARGEST_LOGIT)
    x = tl.minimum(tl.maximum(x, -_LARGEST_LOGIT), _LARGEST_LOGIT)
    y = tl.abs(x)
    n = tl.floor(y * _LOG2_E + 0.5)
    r = (y - n * _LN2_HIGH) - n * _LN2_LOW
    series = 1.0 - r * (1.0 / 7.0)
    for i in tl.static_range(6):
        series = 1.0 - (r * (1.0 / (6 - i))) * series
    t = series * ((127 - n.to(tl.int32)) << 23).to(tl.float32, bitcast=True)
    s = tl.div_rn(t, t + 2.0)
    square = s * s
    series = tl.zeros_like(s) + 1.0 / 13.0
    for i in tl.static_range(6):
        series = series * square + 1.0 / (11 - 2 * i)
    softplus = tl.maximum(-x, 0.0) + (s * 2.0) * series
    return tl.floor(softplus * _UNITS_PER_NAT + 0.5).to(tl.int32)


@triton.jit
def _hazards(logits, caps, temperatures, rows, num_rows, logits_stride, GAMMA: tl.constexpr, BLOCK_GAMMA: tl.constexpr):
    """Hazards [rows, BLOCK_GAMMA]; what is no candidate has the limit, which ranks behind every candidate."""
    position = tl.arange(0, BLOCK_GAMMA)
    real = rows < num_rows
    cap = tl.load(caps + rows, mask=real, other=0)
    within = position[None, :] < tl.minimum(cap, GAMMA)[:, None]
    logit = tl.load(logits + rows[:, None] * logits_stride + position[None, :], mask=within, other=0.0)
    temperature = tl.load(temperatures + position, mask=position < GAMMA, other=1.0)
    hazard = tl.cumsum(_hazard_step(tl.div_rn(logit, tl.zeros_like(logit) + temperature[None, :])), axis=1)
    return tl.where(within, tl.minimum(hazard, _HAZARD_LIMIT), _HAZARD_LIMIT)


@triton.jit(do_not_specialize=["num_rows"])
def _allocate_kernel(
    logits,  # [R, G] fp32
    caps,  # [R] int64
    temperatures,  # [G] fp32
    budget,  # [1] int64
    out,  # [R] int64
    num_rows,
    logits_stride,
    GAMMA: tl.constexpr,
    BLOCK_GAMMA: tl.constexpr,
    BLOCK_ROWS: tl.constexpr,
):
    request = tl.program_id(0)
    position = tl.arange(0, BLOCK_GAMMA)
    own = request + tl.zeros([1], tl.int32)
    mine = _hazards(logits, caps, temperatures, own, num_rows, logits_stride, GAMMA, BLOCK_GAMMA)
    mine = tl.reshape(mine, [BLOCK_GAMMA])
    most = tl.load(budget)
    ranks = tl.zeros([BLOCK_GAMMA], tl.int32)
    for first in range(0, num_rows, BLOCK_ROWS):
        rows = first + tl.arange(0, BLOCK_ROWS)
        theirs = _hazards(logits, caps, temperatures, rows, num_rows, logits_stride, GAMMA, BLOCK_GAMMA)
        for j in tl.static_range(GAMMA):
            hazard = tl.sum(tl.where(position == j, mine, 0))
            earlier = (rows[:, None] < request) | ((rows[:, None] == request) & (position[None, :] < j))
            ahead = (theirs < hazard) | ((theirs == hazard) & earlier)
            ranks += tl.where(position == j, tl.sum(tl.sum(ahead.to(tl.int32), axis=1), axis=0), 0)
    tl.store(out + request, tl.sum(((mine < _HAZARD_LIMIT) & (ranks < most)).to(tl.int64)))


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
    num_rows, gamma = confidence_logits.shape
    assert confidence_logits.stride(1) == 1 and caps.is_contiguous() and out.is_contiguous()
    if num_rows == 0:
        return
    block_gamma = max(4, triton.next_power_of_2(gamma))
    _allocate_kernel[(num_rows,)](
        confidence_logits,
        caps,
        temperatures,
        budget,
        out,
        num_rows,
        confidence_logits.stride(0),
        GAMMA=gamma,
        BLOCK_GAMMA=block_gamma,
        BLOCK_ROWS=min(_BLOCK // block_gamma, triton.next_power_of_2(num_rows)),
        num_warps=8,
        # A fused multiply-add rounds once where the twins round twice.
        enable_fp_fusion=False,
    )
