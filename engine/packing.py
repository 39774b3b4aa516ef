"""Lay the query tokens of many requests on one flat axis."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from dspark.engine.batch import PackedBatch
from dspark.engine.kv_pool import PagePool
from dspark.engine.transfer import upload
from dspark.kernels import AttentionLayout


@dataclass(slots=True)
class Packing:
    """Where each packed token belongs, on the host."""

    request: np.ndarray  # [T] int64, batch row
    offsets: np.ndarray  # [T] int64, index among its request's queries
    positions: np.ndarray  # [T] int64, text position
    cache_rows: np.ndarray  # [T] int64
    query_starts: np.ndarray  # [R+1] int32
    kv_lens: np.ndarray  # [R] int32
    block_tables: np.ndarray  # [R, M] int32
    page_size: int
    max_query_len: int

    def layout(self, device: torch.device, *, causal: bool) -> AttentionLayout:
        """The attention layout of these tokens on `device`."""
        return AttentionLayout(
            block_tables=upload(self.block_tables, device),
            query_starts=upload(self.query_starts, device),
            kv_lens=upload(self.kv_lens, device),
            page_size=self.page_size,
            max_query_len=self.max_query_len,
            max_kv_len=int(self.kv_lens.max()),
            causal=causal,
        )

    def batch(self, token_ids: torch.Tensor, device: torch.device) -> PackedBatch:
        """The target's input for `token_ids` [T]."""
        return PackedBatch(
            token_ids=token_ids.to(device, non_blocking=True),
            positions=upload(self.positions, device),
            cache_rows=upload(self.cache_rows, device),
            attention=self.layout(device, causal=True),
        )


def pack(pool: PagePool, slots: np.ndarray, starts: np.ndarray, counts: np.ndarray) -> Packing:
    """Pack `counts` [R] tokens of each of `slots` [R], from text positions `starts` [R] on; none sees nothing."""
    ends = np.cumsum(counts)
    request = np.repeat(np.arange(len(slots)), counts)
    offsets = np.arange(int(ends[-1])) - np.repeat(ends - counts, counts)
    positions = starts[request] + offsets
    kv_lens = np.where(counts > 0, starts + counts, 0)
    pages = pool.pages_for(int(kv_lens.max()))
    return Packing(
        request=request,
        offsets=offsets,
        positions=positions,
        cache_rows=pool.cache_rows(slots[request], positions),
        query_starts=np.concatenate([[0], ends]).astype(np.int32),
        kv_lens=kv_lens.astype(np.int32),
        block_tables=pool.tables[slots, :pages],
        page_size=pool.page_size,
        max_query_len=int(counts.max()),
    )
