"""How the reference attention cuts a packed batch into calls: derived once a forward, used by every layer."""

from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from dspark.kernels.attention.layout import AttentionLayout

# Requests with more queries than this attend alone: padding the others to them would cost more than the extra calls.
LONGEST_BATCHED_QUERY = 16


@dataclass(slots=True)
class AttentionPiece:
    """Requests that share one attention call, padded to Q queries and K visible rows each."""

    num_requests: int
    query_len: int
    kv_len: int
    query_rows: slice | Tensor  # packed rows of the padded queries, [B*Q] if a tensor
    kv_rows: slice | Tensor  # cache rows, [B*K] if a tensor
    # Additive: [B, 1, (Hq/Hkv)*Q, K] if the piece folds query heads into queries, [1, 1, Q, K] if it attends alone.
    mask: Tensor | None
    kept: Tensor | None  # padded rows that are real queries; None = all
    output_rows: slice | Tensor | None  # packed rows that they go to; None = the piece is the whole batch, in order
    # K and V gathered, kept for the next layer: fresh memory for each would cost more than the copy.
    k_buffer: Tensor | None = None
    v_buffer: Tensor | None = None


def plan_attention(
    layout: AttentionLayout, *, num_tokens: int, heads_per_kv: int, device: torch.device, dtype: torch.dtype
) -> list[AttentionPiece]:
    """Pieces that cover a batch of `num_tokens`, padding behind its queries included. Reads the layout on the host."""
    if layout.kv_rows is not None:
        layout = _compacted(layout, layout.kv_rows)
    starts = layout.query_starts.cpu().numpy().astype(np.int64)
    kv_lens = layout.kv_lens.cpu().numpy().astype(np.int64)
    tables = layout.block_tables.cpu().numpy().astype(np.int64)
    query_lens = np.diff(starts)
    pieces = []
    for members in _grouped(query_lens, kv_lens):
        pieces.append(
            _piece(members, starts, query_lens, kv_lens, tables, layout, num_tokens, heads_per_kv, device, dtype)
        )
    return pieces


def _compacted(layout: AttentionLayout, kv_rows: Tensor) -> AttentionLayout:
    """The same view as block tables of pages of one row."""
    there = kv_rows >= 0
    # Stable: the rows keep their order, so that a request's own stay last; those that are none go behind them.
    tables = kv_rows.gather(1, torch.argsort(~there, dim=1, stable=True))
    return replace(
        layout,
        block_tables=tables.clamp(min=0),
        kv_lens=there.sum(dim=1, dtype=torch.int32),
        page_size=1,
        max_kv_len=kv_rows.shape[1],
        kv_rows=None,
    )


def _grouped(query_lens: np.ndarray, kv_lens: np.ndarray) -> list[np.ndarray]:
    """Requests with many queries alone; the others together with those of about as many queries and their context.

    About is within a factor 2: where one request of a batch verifies a whole block, padding all others to it would take
    as long as verifying a block of each. Groups begin with the longest context left, not at powers of 2, which a few
    contexts of about one length may lie on either side of. Those that see nothing are in no group.
    """
    there = np.flatnonzero((query_lens > 0) & (kv_lens > 0))
    groups: list[list[int]] = []
    newest: dict[int, list[int]] = {}  # by the power of 2 that a request's queries fill up
    for request in there[np.argsort(-kv_lens[there], kind="stable")].tolist():
        queries = int(query_lens[request])
        size = (queries - 1).bit_length()
        members = newest.get(size)
        if members is None or queries > LONGEST_BATCHED_QUERY or 2 * kv_lens[request] < kv_lens[members[0]]:
            members = newest[size] = []
            groups.append(members)
        members.append(request)
    # In packed order, so that a batch that is one group needs no gathering.
    return [np.sort(members) for members in groups]


def _piece(
    members: np.ndarray,
    starts: np.ndarray,
    query_lens: np.ndarray,
    kv_lens: np.ndarray,
    tables: np.ndarray,
    layout: AttentionLayout,
    num_tokens: int,
    heads_per_kv: int,
    device: torch.device,
    dtype: torch.dtype,
) -> AttentionPiece:
    lens, visible = query_lens[members], kv_lens[members]
    query_len, kv_len = int(lens.max()), int(visible.max())
    first = int(starts[members[0]])

    query = np.arange(query_len)
    is_query = query < lens[:, None]  # [B, Q]
    # Padding repeats the request's first query, which is always there; its output is dropped.
    query_rows = starts[members][:, None] + np.where(is_query, query, 0)
    covered = query_rows[is_query]
    in_order = bool(is_query.all() and (np.diff(covered) == 1).all())

    in_order_rows = slice(first, first + covered.size)

    def index(rows: np.ndarray) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(rows).reshape(-1)).to(device)

    kv_rows = _kv_rows(tables[members], visible, layout.page_size)
    mask = _mask(lens, visible, query, causal=layout.causal)
    if mask is not None and query_len <= LONGEST_BATCHED_QUERY:
        mask = np.tile(mask, (1, heads_per_kv, 1))
    return AttentionPiece(
        num_requests=len(members),
        query_len=query_len,
        kv_len=kv_len,
        query_rows=in_order_rows if in_order else index(query_rows),
        kv_rows=kv_rows if isinstance(kv_rows, slice) else index(kv_rows),
        mask=None if mask is None else torch.from_numpy(mask)[:, None].to(device=device, dtype=dtype),
        kept=None if is_query.all() else index(np.flatnonzero(is_query)),
        output_rows=None if in_order and covered.size == num_tokens else in_order_rows if in_order else index(covered),
    )


def _kv_rows(tables: np.ndarray, visible: np.ndarray, page_size: int) -> slice | np.ndarray:
    """tables [B, M], visible [B] -> cache rows [B, K]; a slice if one request's lie behind one another."""
    kv_len = int(visible.max())
    if len(tables) == 1:
        pages = tables[0, : -(-kv_len // page_size)]
        if (pages[1:] - pages[:-1] == 1).all():
            first = int(pages[0]) * page_size
            return slice(first, first + kv_len)
    position = np.arange(kv_len)
    is_row = position < visible[:, None]  # [B, K]
    # Padding reads the request's first row: finite by construction, whatever lies behind the visible length.
    page = np.take_along_axis(tables, np.where(is_row, position // page_size, 0), axis=1)
    return np.asarray(page * page_size + np.where(is_row, position % page_size, 0))


def _mask(lens: np.ndarray, visible: np.ndarray, query: np.ndarray, *, causal: bool) -> np.ndarray | None:
    """0 where a query sees a row and -inf where not, [B, Q, K] fp32; None if every query sees every row."""
    if len(visible) == 1 and (len(query) == 1 or not causal):
        return None
    position = np.arange(visible.max())
    limit = np.broadcast_to(visible[:, None], (len(lens), len(query)))
    if causal:
        limit = np.minimum(visible[:, None] - lens[:, None] + query + 1, limit)
    seen = position < limit[:, :, None]
    return None if seen.all() else np.where(seen, np.float32(0), np.float32(-np.inf))
