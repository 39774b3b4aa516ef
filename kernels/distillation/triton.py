"""Cross entropy and L1 of draft rows against target rows, and their gradient, on the GPU."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from dspark.kernels.distillation.rows import DistilledRows
from dspark.kernels.sampling.scans import merge_mass

_BLOCK, _WARPS = 4096, 8
_LOWEST = tl.constexpr(-1.0e30)
_LAST_ID = tl.constexpr(2147483647)


@triton.jit
def _log_mass(row, vocab_size, BLOCK: tl.constexpr):
    """(log of Σ exp(logit), lowest id of the largest logit) of a row."""
    lanes = tl.arange(0, BLOCK)
    largest = tl.full([BLOCK], _LOWEST, tl.float32)
    mass = tl.zeros([BLOCK], tl.float32)
    tokens = tl.full([BLOCK], _LAST_ID, tl.int32)
    for start in range(0, vocab_size, BLOCK):
        ids = start + lanes
        logit = tl.load(row + ids, mask=ids < vocab_size, other=float("-inf"))
        larger = tl.maximum(largest, logit)
        mass = mass * tl.exp(largest - larger) + tl.exp(logit - larger)
        tokens = tl.where(logit > largest, ids, tokens)
        largest = larger
    top, total = merge_mass(largest, mass, 1.0)
    token = tl.min(tl.where(largest == top, tokens, _LAST_ID), axis=0)
    return top + tl.log(total), token


@triton.jit
def _log_mass_kernel(logits, out, row_stride, vocab_size, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    log_mass, _ = _log_mass(logits + row.to(tl.int64) * row_stride, vocab_size, BLOCK)
    tl.store(out + row, log_mass)


@triton.jit
def _distill_kernel(
    draft_logits,  # [N, V] fp32
    target_logits,  # [M, V] fp32
    target_log_mass,  # [M] fp32
    target_rows,  # [N] int64
    labels,  # [N] int64
    weights,  # [N] fp32
    gradient,  # [N, V]
    draft_nll,  # [N] fp32
    target_nll,  # [N] fp32
    distance,  # [N] fp32
    hits,  # [N] bool
    draft_stride,
    target_stride,
    gradient_stride,
    vocab_size,
    ce_share,
    l1_share,
    GRADIENT: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0)
    target_row = tl.load(target_rows + row)
    label = tl.load(labels + row)
    draft = draft_logits + row.to(tl.int64) * draft_stride
    target = target_logits + target_row * target_stride
    p_log_mass = tl.load(target_log_mass + target_row)
    q_log_mass, token = _log_mass(draft, vocab_size, BLOCK)
    tl.store(draft_nll + row, q_log_mass - tl.load(draft + label))
    tl.store(target_nll + row, p_log_mass - tl.load(target + label))
    tl.store(hits + row, token == label)

    lanes = tl.arange(0, BLOCK)
    out = gradient + row.to(tl.int64) * gradient_stride
    total = tl.zeros([BLOCK], tl.float32)
    pulls = tl.zeros([BLOCK], tl.float32)
    for start in range(0, vocab_size, BLOCK):
        ids = start + lanes
        inside = ids < vocab_size
        q = tl.exp(tl.load(draft + ids, mask=inside, other=float("-inf")) - q_log_mass)
        p = tl.exp(tl.load(target + ids, mask=inside, other=float("-inf")) - p_log_mass)
        total += tl.abs(q - p)
        signed = tl.where(q >= p, q, -q)
        pulls += signed
        if GRADIENT:
            # All that the next pass needs of both rows, in half the bytes of one.
            tl.store(out + ids, signed.to(gradient.dtype.element_ty), mask=inside)
    tl.store(distance + row, tl.sum(total, axis=0))
    if GRADIENT:
        pull = tl.sum(pulls, axis=0)
        weight = tl.load(weights + row)
        # What one thread has stored another one may load.
        tl.debug_barrier()
        for start in range(0, vocab_size, BLOCK):
            ids = start + lanes
            inside = ids < vocab_size
            signed = tl.load(out + ids, mask=inside, other=0.0).to(tl.float32)
            slope = tl.abs(signed) * (ce_share - l1_share * pull) + signed * l1_share
            slope -= tl.where(ids == label, ce_share, 0.0)
            tl.store(out + ids, (weight * slope).to(gradient.dtype.element_ty), mask=inside)


def distill_rows(
    draft_logits: Tensor,
    target_logits: Tensor,
    *,
    target_rows: Tensor,
    labels: Tensor,
    weights: Tensor,
    ce_share: float,
    l1_share: float,
    gradient: Tensor | None = None,
) -> DistilledRows:
    """Compare q = softmax(draft_logits [N, V]) with p = softmax(target_logits [M, V]); draft row i faces row
    target_rows[i] of the target's and the token labels[i]; both [N] int64.

    `gradient` [N, V] receives that of Σ weights * (ce_share * -log q(label) + l1_share * ‖q - p‖₁) with respect to the
    draft logits; it may be `draft_logits` itself. weights [N] fp32. Where q equals p, L1 rises with q.
    """
    num_rows, vocab_size = draft_logits.shape
    assert draft_logits.dtype == target_logits.dtype == torch.float32
    assert draft_logits.stride(1) == target_logits.stride(1) == 1
    assert gradient is None or gradient.stride(1) == 1
    device = draft_logits.device
    target_log_mass = torch.empty(target_logits.shape[0], dtype=torch.float32, device=device)
    draft_nll, target_nll, distance = (torch.empty(num_rows, dtype=torch.float32, device=device) for _ in range(3))
    hits = torch.empty(num_rows, dtype=torch.bool, device=device)
    if num_rows == 0:
        return DistilledRows(draft_nll, target_nll, distance, hits)
    block = min(_BLOCK, triton.next_power_of_2(vocab_size))
    # Once a target row, however many draft rows face it.
    _log_mass_kernel[(target_logits.shape[0],)](
        target_logits, target_log_mass, target_logits.stride(0), vocab_size, BLOCK=block, num_warps=_WARPS
    )
    out = draft_logits if gradient is None else gradient
    _distill_kernel[(num_rows,)](
        draft_logits,
        target_logits,
        target_log_mass,
        target_rows,
        labels,
        weights,
        out,
        draft_nll,
        target_nll,
        distance,
        hits,
        draft_logits.stride(0),
        target_logits.stride(0),
        out.stride(0),
        vocab_size,
        ce_share,
        l1_share,
        GRADIENT=gradient is not None,
        BLOCK=block,
        num_warps=_WARPS,
    )
    return DistilledRows(draft_nll, target_nll, distance, hits)
