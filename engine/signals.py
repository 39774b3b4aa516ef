"""What else than the confidence head tells how likely drafted tokens are to be accepted."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from dspark.engine.proposals import DraftOutput
from dspark.kernels import SamplingRows, target_log_probs


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
    if draft.logits is None:
        return torch.ones(draft.tokens.shape), torch.ones(draft.tokens.shape)
    scaled = draft.logits / torch.where(temperature > 0, temperature, 1.0)[:, None, None]
    total = torch.logsumexp(scaled, dim=-1, keepdim=True)
    first, second = (scaled.topk(2, dim=-1).values - total).exp_().unbind(-1)
    return first, first - second


def _overlap(target_logits: Tensor, draft: DraftOutput, lengths: Tensor, rows: SamplingRows) -> Tensor:
    """Probability mass that p and q share, [R, n]: 1 - |p - q| / 2 without a cancellation."""
    overlap = torch.full(draft.tokens.shape, torch.nan)
    start = 0
    # Request by request: a second tensor of all rows would be as large as the target's logits.
    for request, length in enumerate(lengths.tolist()):
        logits = target_logits[start : start + length]  # [length, V]
        start += 1 + length
        tokens = draft.tokens[request, :length, None]
        if rows.temperature[request] == 0:
            # Both are one-hot: they agree or they do not.
            overlap[request, :length] = (logits.argmax(dim=-1) == tokens[:, 0]).float()
            continue
        setting = rows.take(torch.full((length,), request, device=tokens.device))
        p = target_log_probs(logits, setting.temperature, setting.top_k, setting.top_p).exp_()
        if draft.logits is None:
            shared = p.gather(-1, tokens)[:, 0]
        else:
            q = torch.softmax(draft.logits[request, :length] / setting.temperature[:, None], dim=-1)
            shared = torch.minimum(p, q).sum(dim=-1)
        overlap[request, :length] = shared.clamp_(max=1.0)
    return overlap
