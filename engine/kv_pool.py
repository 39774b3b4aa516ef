"""The page allocator behind the paged KV caches."""

from __future__ import annotations

import numpy as np


class PagePool:
    """Hands out cache pages to request slots.

    One pool serves the target's and the drafter's caches: both are indexed by the same rows. Page 0 is padding and
    never handed out. Pages are taken from a stack, lowest first, so that a lone request gets consecutive pages.
    """

    def __init__(self, num_pages: int, page_size: int, *, num_slots: int, max_pages_per_slot: int) -> None:
        self.page_size = page_size
        self.tables = np.zeros((num_slots, max_pages_per_slot), dtype=np.int32)  # [S, M]
        self._held = np.zeros(num_slots, dtype=np.int64)  # [S]
        self._free = np.arange(num_pages - 1, 0, -1, dtype=np.int32)
        self._num_free = num_pages - 1
        # For whoever mirrors `tables`: flat entries that pages were written to, newest last; None: nobody does.
        self.handed_out: list[np.ndarray] | None = None

    @property
    def num_free(self) -> int:
        """Pages nobody holds."""
        return self._num_free

    def pages_for(self, num_tokens: int) -> int:
        """Pages that `num_tokens` cache rows need."""
        return -(-num_tokens // self.page_size)

    def missing(self, slots: np.ndarray, num_tokens: np.ndarray) -> np.ndarray:
        """Pages each of `slots` [R] still lacks to hold `num_tokens` [R] rows."""
        return np.maximum(-(-num_tokens // self.page_size) - self._held[slots], 0)

    def grow(self, slots: np.ndarray, num_pages: np.ndarray) -> None:
        """Give `num_pages` [R] more pages to `slots` [R]; the caller has checked `num_free`."""
        total = int(num_pages.sum())
        if total == 0:
            return
        assert total <= self._num_free, "the caller reserves only what is free"
        taken = self._free[self._num_free - total : self._num_free][::-1]
        self._num_free -= total
        ends = np.cumsum(num_pages)
        offset = np.arange(total) - np.repeat(ends - num_pages, num_pages)
        owners = np.repeat(slots, num_pages)
        columns = self._held[owners] + offset
        self.tables[owners, columns] = taken
        if self.handed_out is not None:
            self.handed_out.append(owners * self.tables.shape[1] + columns)
        self._held[slots] += num_pages

    def release(self, slot: int) -> None:
        """Take every page of `slot` back."""
        held = int(self._held[slot])
        self._free[self._num_free : self._num_free + held] = self.tables[slot, :held][::-1]
        self._num_free += held
        self.tables[slot, :held] = 0
        self._held[slot] = 0

    def cache_rows(self, slots: np.ndarray, positions: np.ndarray) -> np.ndarray:
        """Cache row of `positions` [n] of `slots` [n] (int64)."""
        pages = self.tables[slots, positions // self.page_size]
        return pages.astype(np.int64) * self.page_size + positions % self.page_size
