"""The launch that decides how many draft tokens pass, by rejection sampling or, for greedy rows, by their argmax."""

import triton
import triton.language as tl

from dspark.kernels.random import ACCEPT
from dspark.kernels.random.triton import row_uniform
from dspark.kernels.sampling.scans import is_kept, merge_mass, scan_draw, scan_mass, winner_token
from dspark.kernels.sampling.scratch import NO_WINNER

_NO_WINNER = tl.constexpr(NO_WINNER)
_ACCEPT = tl.constexpr(ACCEPT)


@triton.jit
def _load_mass(parts_ptr, steps, splits, mask, temperature):
    """(largest logit, log of the mass) of each step [STEPS], merged from the parts of its row."""
    at = parts_ptr + (steps[:, None] * tl.num_programs(0) + splits[None, :]) * 4
    largest = tl.load(at, mask=mask, other=-1.0e30, cache_modifier=".cg")
    # Beside the lowest logit any mass counts nothing; 1 keeps the logarithm of an empty step defined.
    mass = tl.load(at + 1, mask=mask, other=1.0, cache_modifier=".cg")
    top, total = merge_mass(largest, mass, 1.0 / temperature)
    return top, tl.log(total)


@triton.jit
def accept_kernel(
    logits_ptr,  # [T, V] fp32
    draft_logits_ptr,  # [R, G, V] fp32, or None
    top_ids_ptr,  # [R, G, TOP] int32; None: without logits either every draft was certain
    top_log_probs_ptr,  # [R, G, TOP] fp32
    starts_ptr,  # [R+1]
    lengths_ptr,  # [R] int64
    drafts_ptr,  # [R, G] int64
    temperature_ptr,  # [R] fp32
    seeds_ptr,  # [R] int64
    positions_ptr,  # [R] int64, of the anchor
    generations_ptr,  # [R] int64
    limits_ptr,  # [R, STEPS, 2] int32, or None
    parts_ptr,  # [R, STEPS, splits, 4] fp32: largest and mass of p, then of q
    winners_ptr,  # [R, STEPS] int64
    arrivals_ptr,  # [R] int32
    norms_ptr,  # [R, 4] fp32: largest and log mass of p, then of q, at the first rejection
    accepted_ptr,  # [R] int64
    tokens_ptr,  # [R] int64, written for greedy rows
    vocab_size,
    row_stride,
    draft_strides,  # of draft_logits, requests and steps
    top_strides,  # of both tops, requests and steps
    drafts_stride,
    split,
    TOP: tl.constexpr,
    TOP_BLOCK: tl.constexpr,
    STEPS: tl.constexpr,
    STEPS_BLOCK: tl.constexpr,
    SPLITS_BLOCK: tl.constexpr,
    BLOCK: tl.constexpr,
):
    part = tl.program_id(0)
    step = tl.program_id(1)
    request = tl.program_id(2)
    length = tl.load(lengths_ptr + request).to(tl.int32)
    if step > length:
        return
    start = tl.load(starts_ptr + request).to(tl.int64)
    temperature = tl.load(temperature_ptr + request)
    slot = request * STEPS + step
    threshold = 0
    cutoff = 0
    if limits_ptr is not None:
        threshold = tl.load(limits_ptr + 2 * slot)
        cutoff = tl.load(limits_ptr + 2 * slot + 1)
    row_ptr = logits_ptr + (start + step) * row_stride
    if draft_logits_ptr is not None:
        draft_ptr = draft_logits_ptr + request.to(tl.int64) * draft_strides[0]
    first = part * split
    last = tl.minimum(first + split, vocab_size)
    if temperature > 0:
        # The last row decides a bonus token, whose draw needs no normalisation.
        if step < length:
            at = parts_ptr + (slot * tl.num_programs(0) + part) * 4
            largest, mass = scan_mass(
                row_ptr, first, last, temperature, threshold, cutoff, limits_ptr is not None, BLOCK
            )
            tl.store(at, largest)
            tl.store(at + 1, mass)
            if draft_logits_ptr is not None:
                largest, mass = scan_mass(
                    draft_ptr + step * draft_strides[1], first, last, temperature, 0, 0, False, BLOCK
                )
                tl.store(at + 2, largest)
                tl.store(at + 3, mass)
    else:
        winner = scan_draw(row_ptr, first, last, 0.0, 0, 0, 0, 0, False, False, BLOCK)
        tl.atomic_max(winners_ptr + slot, winner, sem="relaxed")
    # What any thread wrote before the arrival of this program.
    tl.debug_barrier()
    arrived = tl.atomic_add(arrivals_ptr + request, 1)
    if arrived == (length + 1) * tl.num_programs(0) - 1:
        steps = tl.arange(0, STEPS_BLOCK)
        drafted = steps < length
        draft = tl.load(drafts_ptr + request * drafts_stride + steps, mask=drafted, other=0)
        tl.store(arrivals_ptr + request, 0)
        if temperature > 0:
            splits = tl.arange(0, SPLITS_BLOCK)
            mask = drafted[:, None] & (splits < tl.num_programs(0))[None, :]
            request_parts = parts_ptr + request * STEPS * tl.num_programs(0) * 4
            p_largest, p_log_mass = _load_mass(request_parts, steps, splits, mask, temperature)
            p_logit = tl.load(logits_ptr + (start + steps) * row_stride + draft, mask=drafted, other=0.0)
            log_p = (p_logit - p_largest) / temperature - p_log_mass
            if limits_ptr is not None:
                bound_ptr = limits_ptr + 2 * (request * STEPS + steps)
                bound = tl.load(bound_ptr, mask=drafted, other=0)
                bound_id = tl.load(bound_ptr + 1, mask=drafted, other=0)
                log_p = tl.where(is_kept(p_logit, draft, bound, bound_id), log_p, float("-inf"))
            log_q = tl.zeros_like(log_p)
            q_largest = log_q
            q_log_mass = log_q
            if draft_logits_ptr is not None:
                q_largest, q_log_mass = _load_mass(request_parts + 2, steps, splits, mask, temperature)
                q_logit = tl.load(draft_ptr + steps * draft_strides[1] + draft, mask=drafted, other=0.0)
                log_q = (q_logit - q_largest) / temperature - q_log_mass
            if top_ids_ptr is not None:
                top_at = request.to(tl.int64) * top_strides[0] + steps[:, None] * top_strides[1]
                for begin in range(0, TOP, TOP_BLOCK):
                    rank = begin + tl.arange(0, TOP_BLOCK)[None, :]
                    listed = drafted[:, None] & (rank < TOP)
                    top_id = tl.load(top_ids_ptr + top_at + rank, mask=listed, other=-1)
                    top_log_q = tl.load(top_log_probs_ptr + top_at + rank, mask=listed, other=0.0)
                    # One of them all is the drafted token.
                    log_q += tl.sum(tl.where(top_id == draft[:, None], top_log_q, 0.0), axis=1)
            position = tl.load(positions_ptr + request) + steps + 1
            u = row_uniform(tl.load(seeds_ptr + request), position, tl.load(generations_ptr + request), _ACCEPT)
            accepted = tl.min(tl.where(drafted & (tl.log(u) < log_p - log_q), STEPS_BLOCK, steps))
            here = steps == accepted
            tl.store(norms_ptr + 4 * request, tl.sum(tl.where(here, p_largest, 0.0)))
            tl.store(norms_ptr + 4 * request + 1, tl.sum(tl.where(here, p_log_mass, 0.0)))
            tl.store(norms_ptr + 4 * request + 2, tl.sum(tl.where(here, q_largest, 0.0)))
            tl.store(norms_ptr + 4 * request + 3, tl.sum(tl.where(here, q_log_mass, 0.0)))
            tl.store(accepted_ptr + request, accepted.to(tl.int64))
        else:
            winner_at = winners_ptr + request * STEPS + steps
            own = tl.load(winner_at, mask=steps <= length, other=0, cache_modifier=".cg")
            own = winner_token(own, vocab_size)
            tl.store(winner_at, _NO_WINNER, mask=steps <= length)
            accepted = tl.min(tl.where(drafted & (own == draft), STEPS_BLOCK, steps))
            tl.store(accepted_ptr + request, accepted.to(tl.int64))
            tl.store(tokens_ptr + request, tl.sum(tl.where(steps == accepted, own, 0)))
