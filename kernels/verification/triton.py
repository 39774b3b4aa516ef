"""Verification on the GPU: one launch for greedy and coupled rows, two for rejection, one more where rows truncate.

Rejection takes two because the residual's scan needs the whole device. Done by the last program of the first launch, a
single multiprocessor would read two rows of V logits and draw V noises while, in a small batch, the others stand idle.
"""

import torch
import triton
from torch import Tensor

from dspark.kernels.draft_top import TopQ
from dspark.kernels.sampling.limits import truncation_limits
from dspark.kernels.sampling.rows import SamplingRows
from dspark.kernels.sampling.scratch import scratch_for, split_tokens, splits_block
from dspark.kernels.sampling.triton import draw
from dspark.kernels.verification.acceptance import accept_kernel
from dspark.kernels.verification.commit import commit_kernel
from dspark.kernels.verification.verdict import Verdict

_BLOCK = 2048
_TOP_BLOCK = 64


def verify(
    target_logits: Tensor,
    *,
    query_starts: Tensor,
    lengths: Tensor,
    draft_tokens: Tensor | None,
    draft_logits: Tensor | None,
    rows: SamplingRows,
    positions: Tensor,
    generations: Tensor,
    max_length: int,
    acceptance: str = "rejection",
    draft_top: TopQ | None = None,
) -> Verdict:
    """target_logits [T, V] fp32: row query_starts[r] + k decides the token after k drafts; T may be padded.

    query_starts [R+1]; lengths [R] int64, the draft tokens verified, at most max_length, or -1: the request has no
    rows, and nothing is decided for it; draft_tokens [R, G] int64
    with G >= max_length (None where that is 0); draft_logits [R, G, V] fp32: q = softmax(draft_logits / temperature),
    or draft_top [R, G]: q itself, of its few tokens; neither: each draft token was certain; positions [R] int64, the
    anchor's text position; generations [R] int64, of the block that is verified.
    """
    assert acceptance in ("rejection", "coupled"), acceptance
    if max_length == 0 or rows.all_greedy or acceptance == "coupled":
        # A greedy row's own draw is its argmax, so all of these accept drafts that equal the target's own draws.
        accepted, tokens = draw(
            target_logits,
            rows,
            positions,
            position_offset=1,
            starts=query_starts,
            lengths=lengths if max_length else None,
            drafts=draft_tokens if max_length else None,
            max_length=max_length,
        )
        return Verdict(accepted=torch.zeros_like(tokens) if accepted is None else accepted, next_token=tokens)
    assert draft_tokens is not None, "draft tokens to verify were announced but not given"
    num_requests = positions.shape[0]
    vocab_size = target_logits.shape[-1]
    device = target_logits.device
    tokens = torch.empty(num_requests, dtype=torch.int64, device=device)
    verdict = Verdict(accepted=torch.empty_like(tokens), next_token=tokens)
    if num_requests == 0:
        return verdict
    limits = truncation_limits(target_logits, rows, starts=query_starts, lengths=lengths, max_length=max_length)
    steps = max_length + 1
    block = min(_BLOCK, max(128, triton.next_power_of_2(vocab_size)))
    split = split_tokens(num_requests * steps, vocab_size, block)
    splits = triton.cdiv(vocab_size, split)
    norms = torch.empty(num_requests, 4, dtype=torch.float32, device=device)
    scratch = scratch_for("verify", device, num_requests * steps)
    draft_strides = (0, 0) if draft_logits is None else draft_logits.stride()[:2]
    top_ids, top_log_probs = (None, None) if draft_top is None else (draft_top.ids, draft_top.log_probs)
    top_strides = (0, 0) if draft_top is None else draft_top.ids.stride()[:2]
    top = 0 if draft_top is None else draft_top.count
    top_block = min(_TOP_BLOCK, max(2, triton.next_power_of_2(top)))
    assert draft_top is None or draft_top.ids.stride() == draft_top.log_probs.stride()
    accept_kernel[(splits, steps, num_requests)](
        target_logits,
        draft_logits,
        top_ids,
        top_log_probs,
        query_starts,
        lengths,
        draft_tokens,
        rows.temperature,
        rows.seeds,
        positions,
        generations,
        limits,
        torch.empty(num_requests, steps, splits, 4, dtype=torch.float32, device=device),
        scratch.winners,
        scratch.arrivals,
        norms,
        verdict.accepted,
        tokens,
        vocab_size,
        target_logits.stride(0),
        draft_strides,
        top_strides,
        draft_tokens.stride(0),
        split,
        TOP=top,
        TOP_BLOCK=top_block,
        STEPS=steps,
        STEPS_BLOCK=triton.next_power_of_2(steps),
        SPLITS_BLOCK=splits_block(vocab_size),
        BLOCK=block,
        num_warps=8,
    )
    split = split_tokens(num_requests, vocab_size, block)
    commit_kernel[(triton.cdiv(vocab_size, split), num_requests)](
        target_logits,
        draft_logits,
        top_ids,
        top_log_probs,
        query_starts,
        lengths,
        draft_tokens,
        rows.temperature,
        rows.seeds,
        positions,
        limits,
        scratch.winners,
        scratch.arrivals,
        norms,
        verdict.accepted,
        tokens,
        vocab_size,
        target_logits.stride(0),
        draft_strides,
        top_strides,
        draft_tokens.stride(0),
        split,
        CERTAIN=draft_logits is None and draft_top is None,
        TOP=top,
        TOP_BLOCK=top_block,
        STEPS=steps,
        BLOCK=block,
        num_warps=8,
    )
    return verdict
