"""What else than the confidence head tells how likely drafted tokens are to be accepted."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from dspark.engine.proposals import DraftOutput
from dspark.kernels import SamplingRows, target_log_probs

_ROWS_AT_ONCE = 64


@torch.inference_mode()
def round_signals(
    draft: DraftOutput, target_logits: Tensor, *, lengths: Tensor, rows: SamplingRows, acceptance: str
) -> dict[str, np.ndarray]:
    """Of a block of n drafted tokens a request, three numbers a position, [R, n] fp32 each.

    `draft_max_probability` and `draft_margin`: the largest probability of the draft distribution q, and its lead over
    the next; greedy rows are read at temperature 1, because a one-hot q says nothing. `oracle_acceptance`:
    1 - |p - q| / 2, what rejection sampling accepts on average; NaN where nothing was verified. Coupled draws accept
    another share, so there is none for them.

    target_logits [T, V], T = sum(1 + lengths); lengths [R] int64, the drafted tokens verified.
    """
    largest, margin = _of_draft(draft, rows.temperature)
    signals = {"draft_max_probability": largest, "draft_margin": margin}
    if acceptance == "rejection":
        signals["oracle_acceptance"] = _overlap(target_logits, draft, lengths, rows)
    return {name: values.float().cpu().numpy() for name, values in signals.items()}


def _of_draft(draft: DraftOutput, temperature: Tensor) -> tuple[Tensor, Tensor]:
    """Largest probability and margin, [R, n]."""
    if draft.top is not None:
        ordered = draft.top.log_probs.exp().sort(dim=-1, descending=True).values
        first = ordered[..., 0]
        return first, (first - ordered[..., 1] if draft.top.count > 1 else first)
    if draft.logits is None:
        return torch.ones(draft.tokens.shape), torch.ones(draft.tokens.shape)
    scaled = draft.logits / torch.where(temperature > 0, temperature, 1.0)[:, None, None]
    total = torch.logsumexp(scaled, dim=-1, keepdim=True)
    first, second = (scaled.topk(2, dim=-1).values - total).exp_().unbind(-1)
    return first, first - second


def _overlap(target_logits: Tensor, draft: DraftOutput, lengths: Tensor, rows: SamplingRows) -> Tensor:
    """Probability mass that p and q share, [R, n]: 1 - |p - q| / 2 without a cancellation."""
    overlap = torch.full(draft.tokens.shape, torch.nan, device=draft.tokens.device)
    request = torch.repeat_interleave(lengths)  # of each verified token
    number = torch.arange(len(request), device=request.device)
    position = number - (lengths.cumsum(0) - lengths)[request]
    # A few at a time: a second tensor of all rows would be as large as the target's logits.
    for part in number.split(_ROWS_AT_ONCE):
        owner, place = request[part], position[part]
        setting = rows.take(owner)
        # Before a request's tokens lie the last rows of the requests before it.
        p = target_log_probs(
            target_logits[part + owner], setting.temperature, setting.top_k, setting.top_p
        ).exp_()  # [n, V]
        shared = p.gather(-1, draft.tokens[owner, place, None])[:, 0]
        sampled = setting.temperature > 0
        # A greedy row's q is one-hot, whatever its logits are.
        if draft.top is not None:
            top = draft.top[owner, place]
            shared = torch.minimum(p.gather(-1, top.ids.long()), top.log_probs.exp()).sum(dim=-1).where(sampled, shared)
        elif draft.logits is not None:
            q = torch.softmax(draft.logits[owner, place] / setting.temperature.where(sampled, 1.0)[:, None], dim=-1)
            shared = torch.minimum(p, q).sum(dim=-1).where(sampled, shared)
        overlap[owner, place] = shared.clamp_(max=1.0)
    return overlap
