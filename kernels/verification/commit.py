"""The launch that draws what sampled rows commit behind their accepted tokens: the residual or the bonus token."""

import triton
import triton.language as tl

from dspark.kernels.sampling.scans import best_of, has_winner, is_kept, scan_draw, token_noise, winner_token
from dspark.kernels.sampling.scratch import NO_WINNER

_NO_WINNER = tl.constexpr(NO_WINNER)
_LAST_ID = tl.constexpr(2147483647)


@triton.jit
def _log_one_less_exp(x):
    """log(1 - exp(x)) for x < 0; finite for any x."""
    x = tl.minimum(tl.maximum(x, -100.0), -1e-30)
    # Near 0 the difference loses what x holds, so that range takes the series.
    series = 1 / 24 + x * (1 / 120 + x * (1 / 720))
    series = -x * (1.0 + x * (1 / 2 + x * (1 / 6 + x * series)))
    return tl.log(tl.where(x > -0.25, series, 1.0 - tl.exp(x)))


@triton.jit
def _scan_residual(
    row_ptr, draft_ptr, top_ids_ptr, top_log_probs_ptr, draft, first, last, temperature, seed, position, threshold,
    cutoff, norms_ptr,
    CERTAIN: tl.constexpr, TOP: tl.constexpr, TOP_BLOCK: tl.constexpr, LIMITS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """The packed winner of log max(p - q, 0) + noise among tokens first .. last - 1; no winner where p <= q."""
    lanes = tl.arange(0, BLOCK)
    best = tl.full([BLOCK], float("-inf"), tl.float32)
    tokens = first + lanes
    p_largest, p_log_mass = tl.load(norms_ptr), tl.load(norms_ptr + 1)
    q_largest, q_log_mass = tl.load(norms_ptr + 2), tl.load(norms_ptr + 3)
    rate = 1.0 / temperature
    if TOP > 0:
        # The first of q's tokens, which rise, that is not before this part.
        rank = 0
        for begin in range(0, TOP, TOP_BLOCK):
            at = begin + tl.arange(0, TOP_BLOCK)
            rank += tl.sum((tl.load(top_ids_ptr + at, mask=at < TOP, other=_LAST_ID) < first).to(tl.int32))
        top_id = tl.load(top_ids_ptr + rank, mask=rank < TOP, other=_LAST_ID)
    for start in range(first, last, BLOCK):
        ids = start + lanes
        mask = ids < last
        logit = tl.load(row_ptr + ids, mask=mask, other=float("-inf"))
        kept = mask
        if LIMITS:
            kept = kept & is_kept(logit, ids, threshold, cutoff)
        log_p = (logit - p_largest) * rate - p_log_mass
        if CERTAIN:
            score = log_p
            kept = kept & (ids != draft)
        else:
            if TOP > 0:
                log_q = tl.full([BLOCK], float("-inf"), tl.float32)
                while top_id < start + BLOCK:
                    log_q = tl.where(ids == top_id, tl.load(top_log_probs_ptr + rank), log_q)
                    rank += 1
                    top_id = tl.load(top_ids_ptr + rank, mask=rank < TOP, other=_LAST_ID)
            else:
                q_logit = tl.load(draft_ptr + ids, mask=mask, other=0.0)
                log_q = (q_logit - q_largest) * rate - q_log_mass
            ratio = log_q - log_p
            score = log_p + _log_one_less_exp(ratio)
            kept = kept & (ratio < 0)
        score = tl.where(kept, score + token_noise(start, seed, position, BLOCK), float("-inf"))
        better = score > best
        best = tl.where(better, score, best)
        tokens = tl.where(better, ids, tokens)
    return best_of(best, tokens)


@triton.jit
def commit_kernel(
    logits_ptr,  # [T, V] fp32
    draft_logits_ptr,  # [R, G, V] fp32, or None
    top_ids_ptr,  # [R, G, TOP] int32, rising, or None
    top_log_probs_ptr,  # [R, G, TOP] fp32
    starts_ptr,  # [R+1]
    lengths_ptr,  # [R] int64
    drafts_ptr,  # [R, G] int64
    temperature_ptr,  # [R] fp32
    seeds_ptr,  # [R] int64
    positions_ptr,  # [R] int64, of the anchor
    limits_ptr,  # [R, STEPS, 2] int32, or None
    winners_ptr,  # [R] int64
    arrivals_ptr,  # [R] int32
    norms_ptr,  # [R, 4] fp32
    accepted_ptr,  # [R] int64
    tokens_ptr,  # [R] int64, written for sampled rows
    vocab_size,
    row_stride,
    draft_strides,
    top_strides,
    drafts_stride,
    split,
    CERTAIN: tl.constexpr,
    TOP: tl.constexpr,
    TOP_BLOCK: tl.constexpr,
    STEPS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    part = tl.program_id(0)
    request = tl.program_id(1)
    temperature = tl.load(temperature_ptr + request)
    length = tl.load(lengths_ptr + request)
    # Nothing was decided for a request without rows: what `accepted` holds there is no number of ours.
    if (temperature == 0) | (length < 0):
        return
    accepted = tl.load(accepted_ptr + request)
    bonus = accepted == length
    row_ptr = logits_ptr + (tl.load(starts_ptr + request).to(tl.int64) + accepted) * row_stride
    seed = tl.load(seeds_ptr + request)
    position = tl.load(positions_ptr + request) + accepted + 1
    threshold = 0
    cutoff = 0
    if limits_ptr is not None:
        threshold = tl.load(limits_ptr + 2 * (request * STEPS + accepted))
        cutoff = tl.load(limits_ptr + 2 * (request * STEPS + accepted) + 1)
    first = part * split
    last = tl.minimum(first + split, vocab_size)
    LIMITS: tl.constexpr = limits_ptr is not None
    if bonus:
        winner = scan_draw(row_ptr, first, last, temperature, seed, position, threshold, cutoff, True, LIMITS, BLOCK)
    else:
        draft_ptr = logits_ptr
        if draft_logits_ptr is not None:
            draft_ptr = draft_logits_ptr + request.to(tl.int64) * draft_strides[0] + accepted * draft_strides[1]
        own_ids = starts_ptr
        own_log_probs = norms_ptr
        if TOP > 0:
            top_at = request.to(tl.int64) * top_strides[0] + accepted * top_strides[1]
            own_ids = top_ids_ptr + top_at
            own_log_probs = top_log_probs_ptr + top_at
        winner = _scan_residual(
            row_ptr,
            draft_ptr,
            own_ids,
            own_log_probs,
            tl.load(drafts_ptr + request * drafts_stride + accepted),
            first,
            last,
            temperature,
            seed,
            position,
            threshold,
            cutoff,
            norms_ptr + 4 * request,
            CERTAIN,
            TOP,
            TOP_BLOCK,
            LIMITS,
            BLOCK,
        )
    tl.atomic_max(winners_ptr + request, winner, sem="relaxed")
    tl.debug_barrier()
    arrived = tl.atomic_add(arrivals_ptr + request, 1)
    if arrived == tl.num_programs(0) - 1:
        packed = tl.load(winners_ptr + request, cache_modifier=".cg")
        if not has_winner(packed):
            # p = q up to rounding: then p itself. One program may take its time over what hardly ever happens.
            packed = scan_draw(
                row_ptr, 0, vocab_size, temperature, seed, position, threshold, cutoff, True, LIMITS, BLOCK
            )
        tl.store(tokens_ptr + request, winner_token(packed, vocab_size))
        tl.store(winners_ptr + request, _NO_WINNER)
        tl.store(arrivals_ptr + request, 0)
