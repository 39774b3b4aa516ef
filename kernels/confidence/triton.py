"""Confidence logits on the GPU: one launch a call, for one draft position or for a whole block."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from dspark.kernels.sampling.scans import merge_mass, scan_mass
from dspark.kernels.sampling.scratch import scratch_for, split_tokens, splits_block

_BLOCK = 2048
# As in reference.py: a draft distribution that is one-hot in fp32 would give an infinite logit.
_SMALLEST_REST = tl.constexpr(2.0**-24)


@triton.jit
def _head_kernel(
    hidden_ptr,  # [R, k, H]
    source_ptr,  # w1 [V, r] or embedding [R, k, r]; None: the weight has no Markov part
    previous_ptr,  # [R, k] int64; None: the source is the embedding
    weight_ptr,  # [1, H + r]
    bias_ptr,  # [1]
    out_ptr,  # [R, k] fp32
    hidden_strides,
    previous_strides,
    out_strides,
    HIDDEN: tl.constexpr,
    RANK: tl.constexpr,
    BLOCK: tl.constexpr,
    BLOCK_RANK: tl.constexpr,
):
    step = tl.program_id(0)
    row = tl.program_id(1).to(tl.int64)
    hidden_ptr += row * hidden_strides[0] + step * hidden_strides[1]
    total = tl.zeros([BLOCK], tl.float32)
    for start in range(0, HIDDEN, BLOCK):
        at = start + tl.arange(0, BLOCK)
        mask = at < HIDDEN
        x = tl.load(hidden_ptr + at, mask=mask, other=0.0).to(tl.float32)
        total += x * tl.load(weight_ptr + at, mask=mask, other=0.0).to(tl.float32)
    logit = tl.sum(total) + tl.load(bias_ptr).to(tl.float32)
    if source_ptr is not None:
        source_row = row * tl.num_programs(0) + step
        if previous_ptr is not None:
            source_row = tl.load(previous_ptr + row * previous_strides[0] + step * previous_strides[1])
        ranks = tl.arange(0, BLOCK_RANK)
        mask = ranks < RANK
        e = tl.load(source_ptr + source_row * RANK + ranks, mask=mask, other=0.0)
        e = e.to(hidden_ptr.dtype.element_ty).to(tl.float32)
        logit += tl.sum(e * tl.load(weight_ptr + HIDDEN + ranks, mask=mask, other=0.0).to(tl.float32))
    tl.store(out_ptr + row * out_strides[0] + step * out_strides[1], logit)


def confidence_logits(
    hidden: Tensor,
    w1: Tensor | None,
    previous: Tensor,
    *,
    weight: Tensor,
    bias: Tensor,
    out: Tensor,
    embedding: Tensor | None = None,
) -> None:
    """hidden [R, H]; w1 [V, r]; previous [R] int64; weight [1, H] or [1, H + r]; bias [1]; embedding [R, r].

    Writes weight . [hidden ; embedding] + bias into out [R] fp32, accumulated in fp32. A weight of H columns has no
    Markov part, and then neither w1 nor embedding is read. With a second axis k in hidden [R, k, H], previous, out and
    embedding, one call does all positions of a block, once the tokens before them are known.
    """
    if hidden.dim() == 2:
        hidden, previous, out = hidden[:, None], previous[:, None], out[:, None]
    num_rows, steps, width = hidden.shape
    if hidden.numel() == 0:
        return
    rank = weight.shape[1] - width
    source = w1 if embedding is None else embedding.contiguous()
    _head_kernel[(steps, num_rows)](
        hidden,
        source if rank else None,
        previous if embedding is None else None,
        weight,
        bias,
        out,
        hidden.stride()[:2],
        previous.stride(),
        out.stride(),
        HIDDEN=width,
        RANK=rank,
        BLOCK=min(1024, max(128, triton.next_power_of_2(width))),
        BLOCK_RANK=max(16, triton.next_power_of_2(rank)) if rank else 16,
        num_warps=4,
    )


@triton.jit
def _headless_kernel(
    logits_ptr,  # [R, k, V] fp32
    temperature_ptr,  # [R] fp32
    parts_ptr,  # [R, k, splits, 2] fp32
    arrivals_ptr,  # [R, k] int32
    out_ptr,  # [R, k] fp32
    vocab_size,
    split,
    logits_strides,
    out_strides,
    SPLITS_BLOCK: tl.constexpr,
    BLOCK: tl.constexpr,
):
    part = tl.program_id(0)
    step = tl.program_id(1)
    row = tl.program_id(2)
    temperature = tl.load(temperature_ptr + row)
    temperature = tl.where(temperature > 0, temperature, 1.0)
    first = part * split
    largest, mass = scan_mass(
        logits_ptr + row.to(tl.int64) * logits_strides[0] + step * logits_strides[1],
        first,
        tl.minimum(first + split, vocab_size),
        temperature,
        0,
        0,
        False,
        BLOCK,
    )
    slot = row * tl.num_programs(1) + step
    parts_ptr += slot * tl.num_programs(0) * 2
    tl.store(parts_ptr + 2 * part, largest)
    tl.store(parts_ptr + 2 * part + 1, mass)
    tl.debug_barrier()
    arrived = tl.atomic_add(arrivals_ptr + slot, 1)
    if arrived == tl.num_programs(0) - 1:
        parts = tl.arange(0, SPLITS_BLOCK)
        mask = parts < tl.num_programs(0)
        all_largest = tl.load(parts_ptr + 2 * parts, mask=mask, other=-1.0e30, cache_modifier=".cg")
        all_mass = tl.load(parts_ptr + 2 * parts + 1, mask=mask, other=0.0, cache_modifier=".cg")
        _, total = merge_mass(all_largest, all_mass, 1.0 / temperature)
        logit = -tl.log(tl.maximum(total - 1.0, _SMALLEST_REST))
        tl.store(out_ptr + row.to(tl.int64) * out_strides[0] + step * out_strides[1], logit)
        tl.store(arrivals_ptr + slot, 0)


def headless_confidence_logits(logits: Tensor, *, temperature: Tensor, out: Tensor) -> None:
    """logits [R, V] or [R, k, V] fp32; temperature [R] fp32; out [R] or [R, k] fp32.

    The logit of max softmax(logits / temperature), at temperature 1 for greedy rows.
    """
    if logits.dim() == 2:
        logits, out = logits[:, None], out[:, None]
    num_rows, steps, vocab_size = logits.shape
    if logits.numel() == 0:
        return
    block = min(_BLOCK, max(128, triton.next_power_of_2(vocab_size)))
    split = split_tokens(num_rows * steps, vocab_size, block)
    splits = triton.cdiv(vocab_size, split)
    parts = torch.empty(num_rows, steps, splits, 2, dtype=torch.float32, device=logits.device)
    _headless_kernel[(splits, steps, num_rows)](
        logits,
        temperature,
        parts,
        scratch_for("headless", logits.device, num_rows * steps).arrivals,
        out,
        vocab_size,
        split,
        logits.stride()[:2],
        out.stride(),
        SPLITS_BLOCK=splits_block(vocab_size),
        BLOCK=block,
        num_warps=8,
    )
