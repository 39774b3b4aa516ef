"""The Markov step on the GPU: gather, low-rank matmul, addition and draw in one launch a position."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from dspark.kernels.pdl import await_inputs, launch_options, launches_early
from dspark.kernels.random import NoiseKeys
from dspark.kernels.random.triton import gumbel_tile
from dspark.kernels.sampling.scans import pack_winner, winner_token
from dspark.kernels.sampling.scratch import NO_WINNER, scratch_for

_LAST_ID = tl.constexpr(2147483647)
_NO_WINNER = tl.constexpr(NO_WINNER)
_BLOCK_VOCAB = 128


@triton.jit(do_not_specialize=["num_rows", "purpose"])
def _markov_kernel(
    logits_ptr,  # [R, V] fp32
    source_ptr,  # w1 [V, r] or embedding [R, r]
    w2_ptr,  # [V, r]
    previous_ptr,  # [R] int64; None: the source has a row a request
    temperature_ptr,  # [R] fp32
    seeds_ptr,  # [R] int64; None: every row is greedy
    positions_ptr,  # [R] int64
    generations_ptr,  # [R] int64
    purpose,
    winners_ptr,  # [R] int64
    arrivals_ptr,  # [row tiles] int32
    tokens_ptr,  # [R] int64
    num_rows,
    vocab_size,
    row_stride,
    RANK: tl.constexpr,
    KEEP_LOGITS: tl.constexpr,
    FULL_PRECISION: tl.constexpr,
    BLOCK_RANK: tl.constexpr,
    BLOCK_ROWS: tl.constexpr,
    BLOCK_VOCAB: tl.constexpr,
    PDL: tl.constexpr,
):
    first = tl.program_id(0) * BLOCK_VOCAB
    row_tile = tl.program_id(1)
    rows = row_tile * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS)
    ids = first + tl.arange(0, BLOCK_VOCAB)
    inside = rows < num_rows
    mask = inside[:, None] & (ids < vocab_size)[None, :]
    if RANK > 0:
        # The first tile of w2 does not wait for the token before.
        ranks = tl.arange(0, BLOCK_RANK)
        w2_inside = (ids < vocab_size)[None, :]
        w2_at = w2_ptr + ids[None, :] * RANK
        w2 = tl.load(w2_at + ranks[:, None], mask=w2_inside & (ranks < RANK)[:, None], other=0.0)
    await_inputs(PDL)
    at = logits_ptr + rows.to(tl.int64)[:, None] * row_stride + ids[None, :]
    scores = tl.load(at, mask=mask, other=float("-inf"))
    if RANK > 0:
        source_rows = rows.to(tl.int64)
        if previous_ptr is not None:
            source_rows = tl.load(previous_ptr + rows, mask=inside, other=0)
        bias = tl.zeros([BLOCK_ROWS, BLOCK_VOCAB], tl.float32)
        for start in tl.range(0, RANK, BLOCK_RANK, num_stages=1):
            ranks = start + tl.arange(0, BLOCK_RANK)
            real = ranks < RANK
            e = tl.load(
                source_ptr + source_rows[:, None] * RANK + ranks[None, :],
                mask=inside[:, None] & real[None, :],
                other=0.0,
            )
            ahead = ranks + BLOCK_RANK
            next_w2 = tl.load(w2_at + ahead[:, None], mask=w2_inside & (ahead < RANK)[:, None], other=0.0)
            if FULL_PRECISION:
                e = e.to(tl.float32)
                bias = tl.dot(e, w2.to(tl.float32), bias, input_precision="ieee")
            else:
                bias = tl.dot(e, w2, bias, input_precision="ieee")
            w2 = next_w2
        scores += bias
        if KEEP_LOGITS:
            tl.store(at, scores, mask=mask)
    if seeds_ptr is not None:
        temperature = tl.load(temperature_ptr + rows, mask=inside, other=0.0)
        if tl.max(temperature) > 0:
            seed = tl.load(seeds_ptr + rows, mask=inside, other=0)[:, None]
            position = tl.load(positions_ptr + rows, mask=inside, other=0)[:, None]
            generation = tl.load(generations_ptr + rows, mask=inside, other=0)[:, None]
            noise = gumbel_tile(first, seed, position, generation, purpose, BLOCK_ROWS, BLOCK_VOCAB)
            # Temperature 0 leaves the logits bit for bit: greedy rows need no mask.
            scores += temperature[:, None] * noise
    top = tl.max(scores, axis=1)
    token = tl.min(tl.where(scores == top[:, None], ids[None, :], _LAST_ID), axis=1)
    tl.atomic_max(winners_ptr + rows, pack_winner(top, token), mask=inside, sem="relaxed")
    # All threads' winners before the arrival of this program.
    tl.debug_barrier()
    arrived = tl.atomic_add(arrivals_ptr + row_tile, 1)
    if arrived == tl.num_programs(0) - 1:
        packed = tl.load(winners_ptr + rows, mask=inside, other=0, cache_modifier=".cg")
        tl.store(tokens_ptr + rows, winner_token(packed, vocab_size), mask=inside)
        tl.store(winners_ptr + rows, _NO_WINNER, mask=inside)
        tl.store(arrivals_ptr + row_tile, 0)


def _tile(num_rows: int, full_precision: bool) -> tuple[int, int, int]:
    """Rows and ranks of a tile, and its warps: w2 is read once a tile of rows, so tiles are as tall as fits."""
    if full_precision:
        # Without tensor cores a thread holds its operands in registers, which taller tiles would spill.
        return 16, 16, 4
    if num_rows <= 16:
        return 16, 64, 4
    if num_rows <= 32:
        return 32, 32, 4
    return 64, 64, 8


def markov_step(
    logits: Tensor,
    w1: Tensor | None,
    w2: Tensor | None,
    previous: Tensor,
    *,
    noise: NoiseKeys | None,
    temperature: Tensor,
    embedding: Tensor | None = None,
    keep_logits: bool = True,
) -> Tensor:
    """logits [R, V] fp32, changed in place; w1, w2 [V, r]; previous [R] int64; temperature [R] fp32; embedding [R, r].

    Returns tokens [R] int64. `noise` None says that every row is greedy, which spares the draw. With `keep_logits` off
    the logits stay as they were, which spares the GPU a write of [R, V] where nobody reads q.
    """
    num_rows, vocab_size = logits.shape
    tokens = torch.empty(num_rows, dtype=torch.int64, device=logits.device)
    if num_rows == 0:
        return tokens
    source = w1 if embedding is None else embedding.contiguous()
    rank = 0 if w2 is None else w2.shape[1]
    full_precision = w2 is not None and source is not None and not (source.dtype == w2.dtype != torch.float32)
    block_rows, block_rank, num_warps = _tile(num_rows, full_precision)
    early = launches_early(logits.device)
    scratch = scratch_for("markov", logits.device, num_rows)
    _markov_kernel[(triton.cdiv(vocab_size, _BLOCK_VOCAB), triton.cdiv(num_rows, block_rows))](
        logits,
        source if rank else None,
        w2,
        previous if embedding is None else None,
        temperature,
        None if noise is None else noise.seeds,
        None if noise is None else noise.positions,
        None if noise is None else noise.generations,
        0 if noise is None else noise.purpose,
        scratch.winners,
        scratch.arrivals,
        tokens,
        num_rows,
        vocab_size,
        logits.stride(0),
        RANK=rank,
        KEEP_LOGITS=keep_logits,
        FULL_PRECISION=full_precision,
        BLOCK_RANK=min(block_rank, max(16, triton.next_power_of_2(rank))) if rank else 16,
        BLOCK_ROWS=block_rows,
        BLOCK_VOCAB=_BLOCK_VOCAB,
        PDL=early,
        num_warps=num_warps,
        **launch_options(early),
    )
    return tokens
