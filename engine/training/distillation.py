"""The loss between draft and target distributions, with no more than a chunk of logits in memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from dspark.engine.models.layers import Head
from dspark.engine.training.batches import Chunk
from dspark.kernels import DistilledRows, distill_rows


@dataclass(frozen=True, slots=True)
class Comparison:
    """What P draft positions are held against."""

    target_hidden: Tensor  # [M, H], behind the target's final norm
    target_rows: Tensor  # [P] int64, index into target_hidden
    labels: Tensor  # [P] int64
    weights: Tensor  # [P] fp32
    chunks: tuple[Chunk, ...]
    ce_share: float
    l1_share: float


class JointHead:
    """The target's head and, beside it, the Markov head's W2: one product gives logits with the bias added.

    The head's part is written once, W2's part at every `update`.
    """

    def __init__(self, head: Head, *, rank: int, dtype: torch.dtype) -> None:
        self.head = head
        vocab_size, hidden_size = head.weight.shape
        self.hidden_size = hidden_size
        self.weight = torch.empty(vocab_size, hidden_size + rank, dtype=dtype, device=head.weight.device)
        self.weight[:, :hidden_size].copy_(head.weight)

    def update(self, w2: Tensor | None) -> None:
        """Take over W2 [V, r] as it is now."""
        if w2 is not None:
            self.weight[:, self.hidden_size :].copy_(w2.detach())

    def logits(self, seen: Tensor) -> Tensor:
        """seen [n, H + r] -> fp32 logits [n, V]."""
        if self.weight.dtype == torch.float32:
            return torch.mm(seen, self.weight.t())
        if self.weight.is_cuda:
            return torch.mm(seen, self.weight.t(), out_dtype=torch.float32)
        return torch.mm(seen.float(), self.weight.float().t())


def distillation_loss(
    hidden: Tensor, into_w2: Tensor | None, w2: Tensor | None, head: JointHead, comparison: Comparison
) -> tuple[Tensor, DistilledRows]:
    """hidden [P, H], into_w2 [P, r], w2 [V, r] -> Σ weights * (ce_share * CE + l1_share * L1), and its terms.

    Source: arXiv 2607.05147, the training loss. The gradient is computed with the loss, chunk by chunk; the head is
    frozen.
    """
    head.update(w2)
    rows: list[DistilledRows] = []
    loss = _Distillation.apply(hidden, into_w2, w2, head, comparison, rows)  # type: ignore[no-untyped-call]
    return loss, rows[0]


def compare(hidden: Tensor, into_w2: Tensor | None, head: JointHead, comparison: Comparison) -> DistilledRows:
    """The terms alone."""
    with torch.no_grad():
        seen = hidden if into_w2 is None else torch.cat((hidden, into_w2), dim=1)
        return _joined([_compare(seen, head, comparison, chunk, None) for chunk in comparison.chunks])


class _Distillation(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        into_w2: Tensor | None,
        w2: Tensor | None,
        head: JointHead,
        comparison: Comparison,
        out: list[DistilledRows],
    ) -> Tensor:
        seen = hidden if into_w2 is None else torch.cat((hidden, into_w2), dim=1)
        seen_gradient = torch.empty_like(seen)
        w2_gradient = None if w2 is None else torch.zeros_like(w2)
        rows = []
        for chunk in comparison.chunks:
            logits = head.logits(seen[chunk.positions])
            # Narrow products take a narrow gradient; else it takes the place of the logits.
            slope = logits if logits.dtype == seen.dtype else torch.empty_like(logits, dtype=seen.dtype)
            rows.append(_compare_logits(logits, head, comparison, chunk, slope))
            seen_gradient[chunk.positions] = slope @ head.weight
            if w2_gradient is not None and into_w2 is not None:
                _add_product(w2_gradient, slope, into_w2[chunk.positions])
        joined = _joined(rows)
        out.append(joined)
        ctx.save_for_backward(seen_gradient, w2_gradient)
        ctx.hidden_size = hidden.shape[1]
        terms = comparison.ce_share * joined.draft_nll + comparison.l1_share * joined.distance
        return (comparison.weights * terms).sum()

    @staticmethod
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, ...]:
        seen_gradient, w2_gradient = ctx.saved_tensors
        seen_gradient = seen_gradient * upstream.to(seen_gradient.dtype)
        size = ctx.hidden_size
        into_gradient = None if w2_gradient is None else seen_gradient[:, size:]
        w2_gradient = None if w2_gradient is None else w2_gradient * upstream
        return seen_gradient[:, :size], into_gradient, w2_gradient, None, None, None


def _compare(
    seen: Tensor, head: JointHead, comparison: Comparison, chunk: Chunk, slope: Tensor | None
) -> DistilledRows:
    return _compare_logits(head.logits(seen[chunk.positions]), head, comparison, chunk, slope)


def _compare_logits(
    logits: Tensor, head: JointHead, comparison: Comparison, chunk: Chunk, slope: Tensor | None
) -> DistilledRows:
    return distill_rows(
        logits,
        head.head(comparison.target_hidden[chunk.target_rows]),
        target_rows=comparison.target_rows[chunk.positions] - chunk.target_rows.start,
        labels=comparison.labels[chunk.positions],
        weights=comparison.weights[chunk.positions],
        ce_share=comparison.ce_share,
        l1_share=comparison.l1_share,
        gradient=slope,
    )


def _joined(rows: list[DistilledRows]) -> DistilledRows:
    return DistilledRows(
        draft_nll=torch.cat([part.draft_nll for part in rows]),
        target_nll=torch.cat([part.target_nll for part in rows]),
        distance=torch.cat([part.distance for part in rows]),
        hits=torch.cat([part.hits for part in rows]),
    )


def _add_product(total: Tensor, slope: Tensor, into_w2: Tensor) -> None:
    """total [V, r] fp32 += slope [n, V]^T into_w2 [n, r]."""
    if slope.dtype == torch.float32 or not slope.is_cuda:
        total.addmm_(slope.t().to(total.dtype), into_w2.to(total.dtype))
    else:
        total += torch.mm(slope.t(), into_w2, out_dtype=torch.float32)
