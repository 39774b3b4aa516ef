"""Measures a drafter on held-out rows."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import torch

from dspark.engine.training.acceptance import Acceptance, AcceptanceSums, greedy_sums, sampled_sums
from dspark.engine.training.batches import HostBatch
from dspark.engine.training.distillation import compare
from dspark.engine.training.step import DistillationStep


@torch.no_grad()
def evaluate(step: DistillationStep, batches: Iterable[HostBatch], *, at_step: int) -> Acceptance:
    """Acceptance along the held-out texts of `batches`; only blocks that end inside their text count."""
    block_size = step.model.config.block_size
    markov = step.model.markov_head
    step.head.update(None if markov is None else markov.markov_w2.weight)
    sampled, greedy = AcceptanceSums.zero(block_size), AcceptanceSums.zero(block_size)
    losses, errors = [], []
    for host in batches:
        batch, taught = step.teach(host)
        drafted = step.draft(batch, taught)
        rows = compare(drafted.hidden, drafted.into_w2, step.head, step.comparison(batch, taught))
        rates = 1 - rows.distance / 2
        settings = step.settings
        terms = settings.ce_share * rows.draft_nll + settings.l1_share * rows.distance
        losses.append((batch.positions.weights * terms).sum())
        if drafted.confidence is not None:
            errors.append((drafted.confidence.sigmoid() - rates).abs().mean())
        whole = _whole_blocks(host, block_size)
        columns = (rows.draft_nll, rows.target_nll, rows.distance, rows.hits)
        draft_nll, target_nll, distance, hits = (
            column.cpu().numpy()[whole].astype(np.float64) for column in columns
        )  # [N, G]
        temperature = host.temperatures[whole][:, 0]
        at_one, at_zero = temperature == 1, temperature == 0
        sampled += sampled_sums(draft_nll[at_one], target_nll[at_one], distance[at_one])
        greedy += greedy_sums(hits[at_zero])
    return Acceptance(
        step=at_step,
        sampled_length=sampled.length,
        sampled_conditional=sampled.conditional if sampled.blocks else (),
        greedy_length=greedy.length,
        greedy_conditional=greedy.conditional if greedy.blocks else (),
        loss=float(torch.stack(losses).mean()),
        confidence_error=float(torch.stack(errors).mean()) if errors else None,
        sampled_blocks=sampled.blocks,
        greedy_blocks=greedy.blocks,
    )


def _whole_blocks(host: HostBatch, block_size: int) -> np.ndarray:
    """Positions [N, G] of the blocks whose every slot has a label."""
    _, first, count = np.unique(host.slots // block_size, return_index=True, return_counts=True)
    return first[count == block_size][:, None] + np.arange(block_size)
