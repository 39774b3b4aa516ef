"""What the windowed layers of a draft block see, as an index tensor of fixed stride."""

from __future__ import annotations

from dataclasses import replace

import torch

from dspark.engine.models.drafter_formats import DraftWindow
from dspark.engine.proposals import DraftBlock
from dspark.kernels import AttentionLayout

# What the attention kernel asks of an index tensor's width.
_ROWS = 64


def window_layout(window: DraftWindow, block: DraftBlock, *, width: int, context_limit: int) -> AttentionLayout:
    """The layout of `block`, of `width` slots a request, for layers that see `anchor - size <= p < anchor` and it.

    Computed on the block's device from its starts and block tables, whatever they are: a CUDA graph can hold it. The
    block's own rows come last, which is where a causal layout looks for its queries.
    """
    layout = block.attention
    size = min(window.size, context_limit)
    columns = -(-(size + width) // _ROWS) * _ROWS
    offsets = torch.arange(width - columns, width, device=block.starts.device)  # [W], from the anchor
    positions = block.starts[:, None] + offsets  # [R, W]
    seen = (offsets >= -size) & (positions >= 0)
    # Places that are none read some page of the table; which one does not matter.
    pages = (positions.clamp(min=0) // layout.page_size).clamp(max=layout.block_tables.shape[1] - 1)
    rows = layout.block_tables.gather(1, pages) * layout.page_size + positions % layout.page_size
    kv_rows = torch.where(seen, rows, -1).to(torch.int32)
    return replace(layout, causal=window.causal, kv_rows=kv_rows)
