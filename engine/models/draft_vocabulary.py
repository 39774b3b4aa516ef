"""The token ids that a drafter can propose, where its head knows fewer than the target's."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from dspark.engine.errors import CheckpointError
from dspark.engine.models.drafter_config import DrafterConfig
from dspark.engine.models.target_weights import Weights
from dspark.engine.models.tensor_files import DOWNLOAD_AGAIN

OFFSETS, MEMBERS = "d2t", "t2d"


@dataclass(slots=True)
class DraftVocabulary:
    """Rows of the drafter's head and W2, and the target ids they stand for.

    Rows lie in the order of their ids, so that the lowest row among equals is the lowest id.
    """

    ids: Tensor  # [Vd] int64, rising
    vocab_size: int  # V
    order: Tensor | None  # [Vd] int64, the checkpoint's row of each of ours; None: as they are

    def arrange(self, table: Tensor) -> Tensor:
        """A table [Vd, n] of the checkpoint with its rows in our order."""
        return table if self.order is None else table.index_select(0, self.order)

    def empty_logits(self, num_requests: int, steps: int) -> Tensor:
        """Memory for logits over the target's ids, [R, steps, V] fp32."""
        return torch.empty(num_requests, steps, self.vocab_size, dtype=torch.float32, device=self.ids.device)

    def spread(self, logits: Tensor, out: Tensor) -> None:
        """logits [..., Vd] into the places of their ids in out [..., V], whose other places are left alone."""
        out.index_copy_(out.dim() - 1, self.ids, logits)


def load_draft_vocabulary(config: DrafterConfig, weights: Weights, device: torch.device) -> DraftVocabulary | None:
    """What `d2t` says: row i is the target id i + d2t[i]. None if the rows are the target's ids.

    Raises:
        CheckpointError: the ids lie outside the target's vocabulary, repeat, or are not those that `t2d` marks.
    """
    size, vocab_size = config.head_vocab_size, config.backbone.vocab_size
    if config.draft_vocab_size is None or (size == vocab_size and OFFSETS not in weights):
        return None
    ids = torch.arange(size) + weights.read_ids(OFFSETS, (size,)).cpu()
    if int(ids.min()) < 0 or int(ids.max()) >= vocab_size:
        raise CheckpointError(
            f"tensor {OFFSETS} leads to token {int(ids.min())} to {int(ids.max())}, outside the vocabulary of "
            f"{vocab_size}",
            DOWNLOAD_AGAIN,
        )
    rising, order = ids.sort()
    if bool((rising[1:] == rising[:-1]).any()):
        raise CheckpointError(f"tensor {OFFSETS} leads to the same token from several rows", DOWNLOAD_AGAIN)
    if MEMBERS in weights:
        marked = weights.read_ids(MEMBERS, (vocab_size,)).cpu().nonzero()[:, 0]
        if not torch.equal(marked, rising):
            raise CheckpointError(
                f"tensors {OFFSETS} and {MEMBERS} disagree on which tokens can be drafted", DOWNLOAD_AGAIN
            )
    in_order = bool((ids == rising).all())
    if size == vocab_size and in_order:
        return None
    return DraftVocabulary(rising.to(device), vocab_size, None if in_order else order)
