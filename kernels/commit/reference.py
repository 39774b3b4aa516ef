"""The end of a round in plain torch."""

import torch
from torch import Tensor

from dspark.kernels.commit.fields import ResultField, SlotField


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
    live = (lengths >= 0).nonzero()[:, 0]
    out[:, : len(ResultField)] = 0
    out[:, ResultField.LENGTH] = lengths
    owners, accepted, next_tokens = slots[live], accepted[live], next_tokens[live]
    rows = state[owners]  # [n, fields]
    tokens = torch.zeros(len(live), 1 + (0 if drafts is None else drafts.shape[1]), dtype=torch.int64)
    if drafts is not None:
        tokens[:, :-1] = drafts[live]
    tokens.scatter_(1, accepted[:, None], next_tokens[:, None])
    column = torch.arange(tokens.shape[1])
    ends = (tokens[:, :, None] == stop_ids).any(dim=2) & (rows[:, SlotField.IGNORE_EOS, None] == 0)
    ends &= column <= accepted[:, None]
    stopped = ends.any(dim=1)
    emitted = torch.where(stopped, ends.to(torch.int8).argmax(dim=1), accepted) + 1
    left = rows[:, SlotField.TOKENS_LEFT] - emitted

    rows[:, SlotField.START] += emitted
    rows[:, SlotField.ANCHOR] = tokens.gather(1, emitted[:, None] - 1)[:, 0]
    rows[:, SlotField.TOKENS_LEFT] = left
    rows[:, SlotField.FINISHED] = (stopped | (left <= 0)).to(torch.int64)
    state[owners] = rows

    chosen = logits[query_starts[live].long() + accepted, next_tokens]
    for field, values in (
        (ResultField.ACCEPTED, accepted),
        (ResultField.EMITTED, emitted),
        (ResultField.STOPPED, stopped),
        (ResultField.FINITE, chosen.isfinite()),
        (ResultField.NEXT_TOKEN, next_tokens),
    ):
        out[live, field] = values.to(torch.int64)
    if drafts is not None:
        # They may lie there already.
        out[:, len(ResultField) : len(ResultField) + drafts.shape[1]] = drafts
