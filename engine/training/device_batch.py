"""A batch on the device: what the frozen target and the drafter read."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from dspark.engine.batch import PackedBatch
from dspark.engine.training.batches import Chunk, HostBatch
from dspark.engine.training.settings import PAGE_TOKENS
from dspark.engine.transfer import upload
from dspark.kernels import AttentionLayout

_MOST_GROUPED = 24


@dataclass(frozen=True, slots=True)
class BlockLayout:
    """B rows of S text tokens with A blocks of G slots each: who sees whom, and where everybody stands.

    The blocks of a row attend in n groups of a = A / n: among all of a row's slots nearly everything is hidden.
    """

    num_rows: int
    context_positions: Tensor  # [B*S] int64, in the token's text
    block_positions: Tensor  # [B*A*G] int64
    visible: Tensor  # [B*n, a*G, S + a*G] bool
    block_tokens: Tensor  # [B, A, G] int64, anchor and masks
    previous: Tensor  # [B, A, G] int64, the text's token before each slot's own

    @classmethod
    def build(
        cls,
        token_ids: Tensor,
        context_positions: Tensor,
        anchor_columns: Tensor,
        first_columns: Tensor,
        *,
        block_size: int,
        mask_token_id: int,
    ) -> BlockLayout:
        """token_ids [B, S], context_positions [B, S] (in the token's text), anchor_columns, first_columns [B, A]:
        a block sees the columns from its first one to the one before its anchor."""
        num_rows, width = token_ids.shape
        num_anchors = anchor_columns.shape[1]
        offsets = torch.arange(block_size, device=token_ids.device)
        column = torch.arange(width, device=token_ids.device)
        context = (column >= first_columns[..., None]) & (column < anchor_columns[..., None])  # [B, A, S]
        group = _group_size(num_anchors)
        context = context.view(-1, group, width).repeat_interleave(block_size, dim=1)  # [B*n, a*G, S]
        own = torch.arange(group, device=token_ids.device).repeat_interleave(block_size)
        within = (own[:, None] == own).expand(context.shape[0], -1, -1)
        visible = torch.cat((context, within), dim=2)
        starts = context_positions.gather(1, anchor_columns)  # [B, A]
        slot_columns = anchor_columns[..., None] + offsets  # [B, A, G]
        # Slots behind the end of a row have no label: what stands before them does not matter.
        previous = token_ids.gather(1, slot_columns.clamp(max=width - 1).flatten(1)).view(slot_columns.shape)
        block_tokens = torch.full_like(previous, mask_token_id)
        block_tokens[..., 0] = previous[..., 0]
        return cls(
            num_rows=num_rows,
            context_positions=context_positions.reshape(-1),
            block_positions=(starts[..., None] + offsets).view(-1),
            visible=visible,
            block_tokens=block_tokens,
            previous=previous,
        )


def _group_size(num_anchors: int) -> int:
    """The largest divisor of up to 24, which hides little and repeats the context's K and V few times."""
    return max(size for size in range(1, min(num_anchors, _MOST_GROUPED) + 1) if num_anchors % size == 0)


@dataclass(frozen=True, slots=True)
class Positions:
    """The P slots that have a label, and the M text positions whose distributions they face."""

    slots: Tensor  # [P] int64, index into B*A*G
    labels: Tensor  # [P] int64
    weights: Tensor  # [P] fp32
    target_rows: Tensor  # [P] int64, index into target_positions
    target_positions: Tensor  # [M] int64, index into B*S
    chunks: tuple[Chunk, ...]


@dataclass(frozen=True, slots=True)
class DeviceBatch:
    """Everything of one batch on one device."""

    text: PackedBatch
    blocks: BlockLayout
    positions: Positions


def to_device(host: HostBatch, device: torch.device, *, block_size: int, mask_token_id: int) -> DeviceBatch:
    """Copy a batch without waiting for the device."""

    move = partial(upload, device=device)
    token_ids, text_positions = move(host.token_ids), move(host.text_positions)
    query_starts = move(host.query_starts)
    width = token_ids.shape[0] // host.num_rows
    text = PackedBatch(
        token_ids=token_ids,
        positions=text_positions,
        cache_rows=move(host.cache_rows),
        attention=AttentionLayout(
            block_tables=move(host.block_tables),
            query_starts=query_starts,
            kv_lens=query_starts.diff(),
            page_size=PAGE_TOKENS,
            max_query_len=width,
            max_kv_len=width,
        ),
    )
    blocks = BlockLayout.build(
        token_ids.view(host.num_rows, -1),
        text_positions.view(host.num_rows, -1),
        move(host.anchor_columns),
        move(host.first_columns),
        block_size=block_size,
        mask_token_id=mask_token_id,
    )
    positions = Positions(
        slots=move(host.slots),
        labels=move(host.labels),
        weights=move(host.weights),
        target_rows=move(host.target_rows),
        target_positions=move(host.target_positions),
        chunks=host.chunks,
    )
    return DeviceBatch(text, blocks, positions)
