"""The end of a round on the GPU: one launch, one program a request."""

import triton
import triton.language as tl
from torch import Tensor

from dspark.kernels.commit.fields import ResultField, SlotField

_START = tl.constexpr(int(SlotField.START))
_ANCHOR = tl.constexpr(int(SlotField.ANCHOR))
_TOKENS_LEFT = tl.constexpr(int(SlotField.TOKENS_LEFT))
_FINISHED = tl.constexpr(int(SlotField.FINISHED))
_IGNORE_EOS = tl.constexpr(int(SlotField.IGNORE_EOS))
_LENGTH = tl.constexpr(int(ResultField.LENGTH))
_ACCEPTED = tl.constexpr(int(ResultField.ACCEPTED))
_EMITTED = tl.constexpr(int(ResultField.EMITTED))
_STOPPED = tl.constexpr(int(ResultField.STOPPED))
_FINITE = tl.constexpr(int(ResultField.FINITE))
_NEXT_TOKEN = tl.constexpr(int(ResultField.NEXT_TOKEN))


@triton.jit(do_not_specialize=["num_drafts", "num_stops"])
def _commit_kernel(
    state,  # [S, fields] int64
    slots,  # [R] int64
    lengths,  # [R] int64
    accepted_counts,  # [R] int64
    next_tokens,  # [R] int64
    drafts,  # [R, G] int64, or None
    logits,  # [T, V] fp32
    query_starts,  # [R+1]
    stop_ids,  # [n] int64
    out,  # [R, fields + G] int64
    num_drafts,
    num_stops,
    drafts_stride,
    logits_stride,
    out_stride,
    FIELDS: tl.constexpr,
    RESULT_FIELDS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    request = tl.program_id(0)
    length = tl.load(lengths + request)
    row = out + request * out_stride
    tl.store(row + _LENGTH, length)
    if length < 0:
        for field in tl.static_range(1, RESULT_FIELDS):
            tl.store(row + field, 0)
        return
    accepted = tl.load(accepted_counts + request)
    next_token = tl.load(next_tokens + request)
    lane = tl.arange(0, BLOCK)
    tokens = tl.full([BLOCK], -2, tl.int64)
    if drafts is not None:
        tokens = tl.load(drafts + request * drafts_stride + lane, mask=lane < num_drafts, other=-2)
        tl.store(row + RESULT_FIELDS + lane, tokens, mask=lane < num_drafts)
    tokens = tl.where(lane == accepted, next_token, tokens)
    ends = lane < 0
    for at in range(num_stops):
        ends |= tokens == tl.load(stop_ids + at)
    own = state + tl.load(slots + request) * FIELDS
    ends &= (tl.load(own + _IGNORE_EOS) == 0) & (lane <= accepted)
    first_end = tl.min(tl.where(ends, lane, BLOCK))
    stopped = first_end < BLOCK
    last = tl.where(stopped, first_end, accepted.to(tl.int32))
    emitted = (last + 1).to(tl.int64)
    left = tl.load(own + _TOKENS_LEFT) - emitted

    tl.store(own + _START, tl.load(own + _START) + emitted)
    tl.store(own + _ANCHOR, tl.sum(tl.where(lane == last, tokens, 0)))
    tl.store(own + _TOKENS_LEFT, left)
    tl.store(own + _FINISHED, (stopped | (left <= 0)).to(tl.int64))

    decided_by = tl.load(query_starts + request).to(tl.int64) + accepted
    chosen = tl.load(logits + decided_by * logits_stride + next_token)
    # No comparison is true of a NaN.
    finite = tl.abs(chosen) < float("inf")
    tl.store(row + _ACCEPTED, accepted)
    tl.store(row + _EMITTED, emitted)
    tl.store(row + _STOPPED, stopped.to(tl.int64))
    tl.store(row + _FINITE, finite.to(tl.int64))
    tl.store(row + _NEXT_TOKEN, next_token)


def commit_round(
    state: Tensor,
    *,
    slots: Tensor,
    lengths: Tensor,
    accepted: Tensor,
    next_tokens: Tensor,
    drafts: Tensor | None,
    logits: Tensor,
    query_starts: Tensor,
    stop_ids: Tensor,
    out: Tensor,
) -> None:
    """Advance the requests of a round by what verification decided, and write `out` [R, fields + G] int64.

    state [S, fields] int64, see `SlotField`; slots [R] int64, distinct where lengths [R] int64 are not negative: the
    others are left alone. accepted, next_tokens [R] int64; drafts [R, G] int64, or None; stop_ids [n] int64. A request
    ends with its first stop token and with its last token left, neither of which depends on another request.

    logits [T, V] fp32, query_starts [R+1]: row query_starts[r] + accepted[r] gave the next token. A NaN anywhere in a
    row wins its draw, so the logit of the token that was drawn tells of all.
    """
    num_drafts = 0 if drafts is None else drafts.shape[1]
    assert state.is_contiguous() and out.stride(1) == logits.stride(1) == 1
    assert drafts is None or drafts.stride(1) == 1
    if lengths.shape[0] == 0:
        return
    _commit_kernel[(lengths.shape[0],)](
        state,
        slots,
        lengths,
        accepted,
        next_tokens,
        drafts,
        logits,
        query_starts,
        stop_ids,
        out,
        num_drafts,
        stop_ids.shape[0],
        0 if drafts is None else drafts.stride(0),
        logits.stride(0),
        out.stride(0),
        FIELDS=len(SlotField),
        RESULT_FIELDS=len(ResultField),
        BLOCK=max(2, triton.next_power_of_2(num_drafts + 1)),
        num_warps=1,
    )
