"""One training step: what the target says of a batch, what the drafter makes of it, and the loss between them."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits

from dspark.engine.models.target import Target
from dspark.engine.training.batches import HostBatch
from dspark.engine.training.device_batch import DeviceBatch, to_device
from dspark.engine.training.distillation import Comparison, JointHead, distillation_loss
from dspark.engine.training.draft_model import TrainableDrafter
from dspark.engine.training.settings import PAGE_TOKENS, TrainSettings
from dspark.engine.training.teacher import Taught, Teacher
from dspark.kernels import DistilledRows


@dataclass(frozen=True, slots=True)
class Drafted:
    """What the drafter makes of the P positions that have a label."""

    hidden: Tensor  # [P, H]
    into_w2: Tensor | None  # [P, r]
    confidence: Tensor | None  # [P] fp32 logits


@dataclass(frozen=True, slots=True)
class StepLoss:
    """The loss of a batch, on the device, and its terms at each position."""

    loss: Tensor
    rows: DistilledRows
    slots: Tensor  # [P] int64, which slots the positions are


class DistillationStep:
    """Frozen target, drafter, and everything between them that does not change from step to step.

    Args:
        num_pages: cache pages that the largest batch of texts takes.
    """

    def __init__(self, model: TrainableDrafter, target: Target, settings: TrainSettings, *, num_pages: int) -> None:
        config = model.config
        self.model, self.settings = model, settings
        self._teacher = Teacher(target, config.target_layer_ids, num_pages=num_pages, page_size=PAGE_TOKENS)
        self.head = JointHead(target.head, rank=config.markov_rank, dtype=model.dtype)
        self._device = target.device

    def __call__(self, host: HostBatch) -> StepLoss:
        """Loss of one batch; nothing here waits for the device."""
        batch, taught = self.teach(host)
        drafted = self.draft(batch, taught)
        markov = self.model.markov_head
        w2 = None if markov is None else markov.markov_w2.weight
        loss, rows = distillation_loss(drafted.hidden, drafted.into_w2, w2, self.head, self.comparison(batch, taught))
        if drafted.confidence is not None:
            # The rate is what the head is to predict, not what moves the draft.
            rates = 1 - rows.distance / 2
            bce = binary_cross_entropy_with_logits(drafted.confidence, rates, reduction="none")
            loss = loss + self.settings.confidence_share * (batch.positions.weights * bce).sum()
        return StepLoss(loss, rows, batch.positions.slots)

    def teach(self, host: HostBatch) -> tuple[DeviceBatch, Taught]:
        """The batch on the device, and the target's forward of it."""
        config = self.model.config
        batch = to_device(host, self._device, block_size=config.block_size, mask_token_id=config.mask_token_id)
        return batch, self._teacher(batch.text)

    def draft(self, batch: DeviceBatch, taught: Taught) -> Drafted:
        """The drafter's forward of a batch, behind the text's own tokens."""
        slots = batch.positions.slots
        hidden = self.model(taught.features, batch.blocks)  # [B*A*G, H]
        token = into_w2 = None
        if self.model.markov_head is not None:
            blocks = hidden.view(-1, self.model.config.block_size, hidden.shape[1])
            both = self.model.markov_head(blocks, batch.blocks.previous.flatten(0, 1))
            token, into_w2 = (part.flatten(0, 1).index_select(0, slots) for part in both)
        hidden = hidden.index_select(0, slots)
        return Drafted(hidden, into_w2, self.model.confidence(hidden, token))

    def comparison(self, batch: DeviceBatch, taught: Taught) -> Comparison:
        """What the batch's positions are held against."""
        positions = batch.positions
        return Comparison(
            target_hidden=taught.hidden.index_select(0, positions.target_positions),
            target_rows=positions.target_rows,
            labels=positions.labels,
            weights=positions.weights,
            chunks=positions.chunks,
            ce_share=self.settings.ce_share,
            l1_share=self.settings.l1_share,
        )
