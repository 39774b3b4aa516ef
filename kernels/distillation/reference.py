"""Cross entropy and L1 of draft rows against target rows, and their gradient, in plain torch."""

import torch
from torch import Tensor

from dspark.kernels.distillation.rows import DistilledRows


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
    log_q = draft_logits.log_softmax(-1)
    log_p = target_logits.log_softmax(-1)
    hits = draft_logits.argmax(-1) == labels
    label_column = labels[:, None]
    draft_nll = -log_q.gather(1, label_column)[:, 0]
    target_nll = -log_p[target_rows, labels]
    q = log_q.exp_()
    difference = q - log_p.exp_().index_select(0, target_rows)
    distance = difference.abs().sum(-1)
    if gradient is not None:
        sign = torch.where(difference >= 0, 1.0, -1.0).to(q.dtype)
        pull = (sign * q).sum(-1, keepdim=True)
        slope = q.mul_(sign.sub_(pull).mul_(l1_share).add_(ce_share))
        slope.scatter_add_(1, label_column, torch.full_like(slope[:, :1], -ce_share))
        gradient.copy_(slope.mul_(weights[:, None]))
    return DistilledRows(draft_nll, target_nll, distance, hits)
