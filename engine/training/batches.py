"""The batches of a run: batch i is a function of the seed and of i alone, so a run can go on anywhere."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from dspark.engine.training.documents import Documents, pack_rows
from dspark.engine.training.settings import PAGE_TOKENS

# Draft positions whose logits exist at the same time.
CHUNK_POSITIONS = 4096
_PACK, _ORDER, _ANCHORS = range(3)


@dataclass(frozen=True, slots=True)
class Chunk:
    """Draft positions and the target positions that they face, compared at once."""

    positions: slice
    target_rows: slice


@dataclass(frozen=True, slots=True)
class HostBatch:
    """B rows of S tokens with A blocks of G slots each, on the host. P of the slots have a label: the positions."""

    # The texts as requests of the target; what is left of a row is one more.
    token_ids: np.ndarray  # [B*S] int64
    text_positions: np.ndarray  # [B*S] int64
    cache_rows: np.ndarray  # [B*S] int64
    query_starts: np.ndarray  # [R+1] int32
    block_tables: np.ndarray  # [R, pages] int32
    # The blocks. An anchor sees the columns first … anchor - 1 of its row; a block that is none sees nothing.
    anchor_columns: np.ndarray  # [B, A] int64
    first_columns: np.ndarray  # [B, A] int64
    # The positions, in the order of the slots.
    slots: np.ndarray  # [P] int64, index into B*A*G
    labels: np.ndarray  # [P] int64
    weights: np.ndarray  # [P] float32, of their place in the block; they sum to 1
    target_rows: np.ndarray  # [P] int64, index into `target_positions`
    target_positions: np.ndarray  # [M] int64, index into B*S
    temperatures: np.ndarray  # [P] float32, of the text
    chunks: tuple[Chunk, ...]
    num_rows: int


class Batches:
    """Draws rows of packed texts, and anchors in them.

    Args:
        chosen: [D] bool, the texts to draw from.
        rows: rows of a batch.
        anchors: blocks of a row, as far as a row has places for so many.
        decay: weight of slot k is exp(-(k - 1) / decay).
    """

    def __init__(
        self,
        documents: Documents,
        chosen: np.ndarray,
        *,
        rows: int,
        row_tokens: int,
        anchors: int,
        block_size: int,
        decay: float,
        seed: int,
    ) -> None:
        self._documents = documents
        self.rows, self.row_tokens, self.anchors, self.block_size = rows, row_tokens, anchors, block_size
        self._seed = seed
        self._weights = np.exp(-np.arange(block_size) / decay)
        order = self._random(_PACK, 0).permutation(np.flatnonzero(chosen))
        self._rows = pack_rows(documents.lengths.tolist(), capacity=row_tokens, order=order)
        self._epoch, self._epoch_order = -1, np.zeros(0, np.int64)
        most_texts = max(map(len, self._rows))
        # Every text begins a page, and so does what fills the row; page 0 is padding.
        self.num_pages = 1 + rows * (row_tokens // PAGE_TOKENS + most_texts + 1)

    def batch(self, index: int) -> HostBatch:
        """Batch `index` of the endless run: every epoch takes each row once, in an order of its own."""
        first = index * self.rows
        return self._build([self._row(number) for number in range(first, first + self.rows)], first)

    def once(self) -> Iterator[HostBatch]:
        """All rows once, in the order in which they were packed; the last batch may have fewer."""
        for first in range(0, len(self._rows), self.rows):
            yield self._build(self._rows[first : first + self.rows], first)

    def _row(self, number: int) -> list[int]:
        epoch, place = divmod(number, len(self._rows))
        if epoch != self._epoch:
            self._epoch, self._epoch_order = epoch, self._random(_ORDER, epoch).permutation(len(self._rows))
        return self._rows[self._epoch_order[place]]

    def _random(self, purpose: int, index: int) -> np.random.Generator:
        return np.random.default_rng([self._seed, purpose, index])

    def _build(self, rows: list[list[int]], first_number: int) -> HostBatch:
        documents, width, num_rows = self._documents, self.row_tokens, len(rows)
        token_ids = np.zeros((num_rows, width), dtype=np.int64)
        text_positions = np.zeros((num_rows, width), dtype=np.int64)
        first_of = np.zeros((num_rows, width), dtype=np.int64)  # column where the token's text begins
        labelled = np.zeros((num_rows, width + self.block_size), dtype=bool)  # may be drafted
        last_of = np.zeros((num_rows, width), dtype=np.int64)  # column behind the token's text
        temperature_of = np.zeros((num_rows, width), dtype=np.float32)
        lengths: list[int] = []
        for row, members in enumerate(rows):
            column = 0
            for index in members:
                tokens = documents.document(index)
                here = slice(column, column + len(tokens))
                token_ids[row, here] = tokens
                text_positions[row, here] = np.arange(len(tokens))
                first_of[row, here] = column
                last_of[row, here] = here.stop
                temperature_of[row, here] = documents.temperatures[index]
                labelled[row, column + documents.prompt_lengths[index] + 1 : here.stop] = True
                lengths.append(len(tokens))
                column = here.stop
            if column < width:
                text_positions[row, column:] = np.arange(width - column)
                lengths.append(width - column)
        anchor_columns = np.full((num_rows, self.anchors), -1, dtype=np.int64)
        for row in range(num_rows):
            # A token whose successor may be drafted.
            candidates = np.flatnonzero(labelled[row, 1 : width + 1])
            picked = self._random(_ANCHORS, first_number + row).permutation(candidates)[: self.anchors]
            anchor_columns[row, : len(picked)] = np.sort(picked)
        return self._batch(
            token_ids, text_positions, first_of, last_of, temperature_of, anchor_columns, np.array(lengths)
        )

    def _batch(
        self,
        token_ids: np.ndarray,
        text_positions: np.ndarray,
        first_of: np.ndarray,
        last_of: np.ndarray,
        temperature_of: np.ndarray,
        anchor_columns: np.ndarray,
        lengths: np.ndarray,
    ) -> HostBatch:
        num_rows, width = token_ids.shape
        is_block = anchor_columns >= 0
        columns = np.where(is_block, anchor_columns, 0)
        row = np.arange(num_rows)[:, None]
        first_columns = np.where(is_block, first_of[row, columns], 0)
        # Slot k predicts the token k columns behind the anchor, as far as the text goes.
        label_columns = columns[..., None] + 1 + np.arange(self.block_size)  # [B, A, G]
        kept = is_block[..., None] & (label_columns < last_of[row, columns][..., None])
        slots = np.flatnonzero(kept)
        label_positions = (row[..., None] * width + label_columns)[kept]  # [P]
        place = np.broadcast_to(np.arange(self.block_size), kept.shape)[kept]
        weights = self._weights[place]
        # The target's distribution of a token is behind the token before it.
        facing = label_positions - 1
        used = np.zeros(num_rows * width, dtype=bool)
        used[facing] = True
        rank = np.cumsum(used) - 1
        query_starts, block_tables, cache_rows = _lay_out(lengths, text_positions.reshape(-1))
        target_positions = np.flatnonzero(used)
        return HostBatch(
            token_ids=token_ids.reshape(-1),
            text_positions=text_positions.reshape(-1),
            cache_rows=cache_rows,
            query_starts=query_starts,
            block_tables=block_tables,
            anchor_columns=columns,
            first_columns=np.where(is_block, first_columns, columns),
            slots=slots,
            labels=token_ids.reshape(-1)[label_positions],
            weights=(weights / max(weights.sum(), 1e-9)).astype(np.float32),
            target_rows=rank[facing],
            target_positions=target_positions,
            temperatures=temperature_of.reshape(-1)[label_positions],
            chunks=self._chunks(slots, target_positions, num_rows),
            num_rows=num_rows,
        )

    def _chunks(self, slots: np.ndarray, target_positions: np.ndarray, num_rows: int) -> tuple[Chunk, ...]:
        """Cut between rows, so that no two chunks face the same target position."""
        slots_per_row = self.anchors * self.block_size
        step = max(1, CHUNK_POSITIONS // slots_per_row)
        bounds = [*range(0, num_rows, step), num_rows]
        cuts = np.searchsorted(slots, np.array(bounds) * slots_per_row).tolist()
        target_cuts = np.searchsorted(target_positions, np.array(bounds) * self.row_tokens).tolist()
        pairs = zip(pairwise(cuts), pairwise(target_cuts), strict=True)
        return tuple(Chunk(slice(*own), slice(*theirs)) for own, theirs in pairs if own[0] < own[1])


def _lay_out(lengths: np.ndarray, text_positions: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Query starts [R+1], block tables [R, M] and cache rows [T] of texts that lie behind one another."""
    pages = -(-lengths // PAGE_TOKENS)
    first_page = 1 + np.cumsum(pages) - pages
    tables = first_page[:, None] + np.arange(pages.max())
    tables = np.where(np.arange(pages.max()) < pages[:, None], tables, 0)
    # The pages of a text lie behind one another, so its rows do.
    cache_rows = np.repeat(first_page * PAGE_TOKENS, lengths) + text_positions
    starts = np.concatenate([[0], np.cumsum(lengths)])
    return starts.astype(np.int32), tables.astype(np.int32), cache_rows
