"""The target's own draw on the GPU: one launch, and one before it when rows truncate."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from dspark.kernels.sampling.limits import truncation_limits
from dspark.kernels.sampling.rows import SamplingRows
from dspark.kernels.sampling.scans import scan_draw, winner_token
from dspark.kernels.sampling.scratch import NO_WINNER, scratch_for, split_tokens

_NO_WINNER = tl.constexpr(NO_WINNER)
_BLOCK = 2048


@triton.jit
def _draw_kernel(
    logits_ptr,  # [T, V] fp32
    starts_ptr,  # [R+1], the row that decides a request's first token; None: request r has row r
    lengths_ptr,  # [R] int64, drafted tokens; None: none
    drafts_ptr,  # [R, G] int64
    temperature_ptr,  # [R] fp32
    seeds_ptr,  # [R] int64; None: every row is greedy
    positions_ptr,  # [R] int64, text position of the first token decided, less POSITION_OFFSET
    limits_ptr,  # [R, STEPS, 2] int32, or None
    winners_ptr,  # [R, STEPS] int64
    arrivals_ptr,  # [R] int32
    accepted_ptr,  # [R] int64
    tokens_ptr,  # [R] int64
    vocab_size,
    row_stride,
    drafts_stride,
    split,
    POSITION_OFFSET: tl.constexpr,
    STEPS: tl.constexpr,
    STEPS_BLOCK: tl.constexpr,
    BLOCK: tl.constexpr,
):
    part = tl.program_id(0)
    step = tl.program_id(1)
    request = tl.program_id(2)
    row = request.to(tl.int64)
    if starts_ptr is not None:
        row = tl.load(starts_ptr + request).to(tl.int64) + step
    length = 0
    if lengths_ptr is not None:
        length = tl.load(lengths_ptr + request).to(tl.int32)
    if step > length:
        return
    slot = request * STEPS + step
    threshold = 0
    cutoff = 0
    if limits_ptr is not None:
        threshold = tl.load(limits_ptr + 2 * slot)
        cutoff = tl.load(limits_ptr + 2 * slot + 1)
    temperature = 0.0
    seed = 0
    position = 0
    if seeds_ptr is not None:
        temperature = tl.load(temperature_ptr + request)
        seed = tl.load(seeds_ptr + request)
        position = tl.load(positions_ptr + request) + step + POSITION_OFFSET
    first = part * split
    winner = scan_draw(
        logits_ptr + row * row_stride,
        first,
        tl.minimum(first + split, vocab_size),
        temperature,
        seed,
        position,
        threshold,
        cutoff,
        seeds_ptr is not None,
        limits_ptr is not None,
        BLOCK,
    )
    tl.atomic_max(winners_ptr + slot, winner, sem="relaxed")
    tl.debug_barrier()
    arrived = tl.atomic_add(arrivals_ptr + request, 1)
    if arrived == (length + 1) * tl.num_programs(0) - 1:
        # The request's last program: its rows are all decided, and what it read goes back to how a launch expects it.
        steps = tl.arange(0, STEPS_BLOCK)
        decided = steps <= length
        at = winners_ptr + request * STEPS + steps
        own = winner_token(tl.load(at, mask=decided, other=0, cache_modifier=".cg"), vocab_size)
        tl.store(at, _NO_WINNER, mask=decided)
        tl.store(arrivals_ptr + request, 0)
        accepted = 0
        if drafts_ptr is not None:
            drafted = steps < length
            draft = tl.load(drafts_ptr + request * drafts_stride + steps, mask=drafted, other=-1)
            accepted = tl.min(tl.where(drafted & (own == draft), STEPS_BLOCK, steps))
            tl.store(accepted_ptr + request, accepted.to(tl.int64))
        tl.store(tokens_ptr + request, tl.sum(tl.where(steps == accepted, own, 0)))


def draw(
    logits: Tensor,
    rows: SamplingRows,
    positions: Tensor,
    *,
    position_offset: int = 0,
    starts: Tensor | None = None,
    lengths: Tensor | None = None,
    drafts: Tensor | None = None,
    max_length: int = 0,
) -> tuple[Tensor | None, Tensor]:
    """logits [T, V]; positions [R] -> how many of drafts [R, G] equal the target's own draws, and the draw behind them.

    Row starts[r] + k decides text position positions[r] + position_offset + k.
    """
    num_requests = positions.shape[0]
    vocab_size = logits.shape[-1]
    device = logits.device
    tokens = torch.empty(num_requests, dtype=torch.int64, device=device)
    accepted = None if drafts is None else torch.empty_like(tokens)
    if num_requests == 0:
        return accepted, tokens
    limits = truncation_limits(logits, rows, starts=starts, lengths=lengths, max_length=max_length)
    steps = max_length + 1
    block = min(_BLOCK, max(128, triton.next_power_of_2(vocab_size)))
    split = split_tokens(num_requests * steps, vocab_size, block)
    scratch = scratch_for("draw", device, num_requests * steps)
    _draw_kernel[(triton.cdiv(vocab_size, split), steps, num_requests)](
        logits,
        starts,
        lengths,
        drafts,
        rows.temperature,
        None if rows.all_greedy else rows.seeds,
        positions,
        limits,
        scratch.winners,
        scratch.arrivals,
        accepted,
        tokens,
        vocab_size,
        logits.stride(0),
        0 if drafts is None else drafts.stride(0),
        split,
        POSITION_OFFSET=position_offset,
        STEPS=steps,
        STEPS_BLOCK=triton.next_power_of_2(steps),
        BLOCK=block,
        num_warps=8,
    )
    return accepted, tokens


def sample(logits: Tensor, rows: SamplingRows, positions: Tensor) -> Tensor:
    """logits [R, V] fp32; positions [R] int64, of the token being decided -> tokens [R] int64."""
    return draw(logits, rows, positions)[1]
