"""The cut of q and the draw from it on the GPU: one launch a position, one program a request."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from dspark.kernels.draft_top.top_q import TopQ
from dspark.kernels.random import NoiseKeys
from dspark.kernels.random.triton import to_gumbel, words_at
from dspark.kernels.sampling.limits import top_k_limits
from dspark.kernels.sampling.scans import is_kept

_LAST_ID = tl.constexpr(2147483647)
_BLOCK = 4096
_TOP_BLOCK = 1024


@triton.jit(do_not_specialize=["purpose"])
def _draw_kernel(
    logits_ptr,  # [R, n] fp32
    ids_ptr,  # [n] int64; None: 0 .. n-1
    temperature_ptr,  # [R] fp32
    seeds_ptr,  # [R] int64
    positions_ptr,  # [R] int64
    generations_ptr,  # [R] int64
    purpose,
    top_ids_ptr,  # [R, TOP] int32
    top_log_probs_ptr,  # [R, TOP] fp32
    tokens_ptr,  # [R] int64
    num_logits,
    logits_stride,
    top_stride,
    TOP: tl.constexpr,
    TOP_BLOCK: tl.constexpr,
    BLOCK: tl.constexpr,
):
    request = tl.program_id(0).to(tl.int64)
    row_ptr = logits_ptr + request * logits_stride
    own_ids = top_ids_ptr + request * top_stride
    own_log_probs = top_log_probs_ptr + request * top_stride
    threshold, cutoff = top_k_limits(row_ptr, num_logits, TOP, BLOCK)
    lanes = tl.arange(0, BLOCK)
    found = 0
    lane_top = tl.full([BLOCK], float("-inf"), tl.float32)
    for start in range(0, num_logits, BLOCK):
        place = start + lanes
        inside = place < num_logits
        logit = tl.load(row_ptr + place, mask=inside, other=float("-inf"))
        lane_top = tl.maximum(lane_top, logit)
        kept = inside & is_kept(logit, place, threshold, cutoff)
        rank = found + tl.cumsum(kept.to(tl.int32), 0) - 1
        found += tl.sum(kept.to(tl.int32))
        token = place
        if ids_ptr is not None:
            token = tl.load(ids_ptr + place, mask=kept, other=0).to(tl.int32)
        tl.store(own_ids + rank, token, mask=kept)
        tl.store(own_log_probs + rank, logit, mask=kept)
    # What other threads of this program have written.
    tl.debug_barrier()
    largest = tl.max(lane_top)
    temperature = tl.load(temperature_ptr + request)
    heat = tl.where(temperature > 0, temperature, 1.0)
    ranks = tl.arange(0, TOP_BLOCK)
    mass = tl.zeros([TOP_BLOCK], tl.float32)
    for start in range(0, TOP, TOP_BLOCK):
        at = start + ranks
        logit = tl.load(own_log_probs + at, mask=at < TOP, other=float("-inf"))
        mass += tl.exp((logit - largest) / heat)
    log_mass = tl.log(tl.sum(mass))
    seed, position = tl.load(seeds_ptr + request), tl.load(positions_ptr + request)
    generation = tl.load(generations_ptr + request)
    best = tl.full([TOP_BLOCK], float("-inf"), tl.float32)
    drawn = tl.zeros([TOP_BLOCK], tl.int32)
    for start in range(0, TOP, TOP_BLOCK):
        at = start + ranks
        real = at < TOP
        token = tl.load(own_ids + at, mask=real, other=0)
        log_prob = (tl.load(own_log_probs + at, mask=real, other=float("-inf")) - largest) / heat - log_mass
        # Threads that hold the same number have all read it.
        tl.debug_barrier()
        tl.store(own_log_probs + at, log_prob, mask=real)
        score = log_prob
        if temperature > 0:
            score += to_gumbel(words_at(token, seed, position, generation, purpose))
        better = real & (score > best)
        best = tl.where(better, score, best)
        drawn = tl.where(better, token, drawn)
    token = tl.min(tl.where(best == tl.max(best), drawn, _LAST_ID))
    tl.store(tokens_ptr + request, token.to(tl.int64))


def draw_from_top(
    logits: Tensor, *, noise: NoiseKeys, temperature: Tensor, out: TopQ, ids: Tensor | None = None
) -> Tensor:
    """logits [R, n] fp32 of tokens ids [n] int64, rising, or of 0 .. n-1; temperature [R] fp32; out [R, K], K <= n.

    Writes softmax(logits / temperature), cut to its K likeliest tokens (the lower ids among equals) and renormalised,
    and returns tokens [R] int64 drawn from the very numbers in `out`, with the noise of their ids. Greedy rows get
    their likeliest token, and the distribution at temperature 1.
    """
    num_rows, num_logits = logits.shape
    tokens = torch.empty(num_rows, dtype=torch.int64, device=logits.device)
    if num_rows == 0:
        return tokens
    assert out.ids.stride() == out.log_probs.stride() and out.ids.stride(1) == logits.stride(1) == 1
    _draw_kernel[(num_rows,)](
        logits,
        ids,
        temperature,
        noise.seeds,
        noise.positions,
        noise.generations,
        noise.purpose,
        out.ids,
        out.log_probs,
        tokens,
        num_logits,
        logits.stride(0),
        out.ids.stride(0),
        TOP=out.count,
        TOP_BLOCK=min(_TOP_BLOCK, max(2, triton.next_power_of_2(out.count))),
        BLOCK=min(_BLOCK, max(128, triton.next_power_of_2(num_logits))),
        num_warps=16,
    )
    return tokens
