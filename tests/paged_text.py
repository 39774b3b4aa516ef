"""Requests of a test that grow and roll back over a paged cache with shuffled pages."""

from __future__ import annotations

import numpy as np
import torch

from dspark.engine.batch import PackedBatch
from dspark.engine.models.kv_cache import KVCache
from dspark.kernels import AttentionLayout


class PagedTexts:
    """R texts with `pages_each` pages a text, dealt in random order, every row NaN until written."""

    def __init__(self, cache: KVCache, num_texts: int, *, pages_each: int, seed: int = 0) -> None:
        self.page_size = cache.page_size
        order = np.random.default_rng(seed).permutation(num_texts * pages_each) + 1
        self.tables = order.reshape(num_texts, pages_each)
        # Page 0 is the padding page and stays as it is.
        cache.k[:, self.page_size :] = float("nan")
        cache.v[:, self.page_size :] = float("nan")
        self.cache = cache
        self.lengths = np.zeros(num_texts, dtype=np.int64)

    def batch(self, tokens: dict[int, list[int]]) -> PackedBatch:
        """Append `tokens[text]` to each text of the mapping, in its order."""
        positions, rows, tables, kv_lens, counts, ids = [], [], [], [], [], []
        for text, new in tokens.items():
            position = self.lengths[text] + np.arange(len(new))
            positions.append(position)
            rows.append(self.rows(text, position))
            self.lengths[text] += len(new)
            tables.append(self.tables[text])
            kv_lens.append(self.lengths[text])
            counts.append(len(new))
            ids.extend(new)
        layout = AttentionLayout(
            block_tables=torch.from_numpy(np.stack(tables).astype(np.int32)),
            query_starts=torch.from_numpy(np.cumsum([0, *counts]).astype(np.int32)),
            kv_lens=torch.from_numpy(np.array(kv_lens, dtype=np.int32)),
            page_size=self.page_size,
            max_query_len=max(counts),
            max_kv_len=int(max(kv_lens)),
        )
        return PackedBatch(
            token_ids=torch.tensor(ids),
            positions=torch.from_numpy(np.concatenate(positions)),
            cache_rows=torch.from_numpy(np.concatenate(rows)),
            attention=layout,
        )

    def roll_back(self, text: int, length: int) -> None:
        """Shorten a text; the rows behind stay in the cache and turn NaN."""
        stale = self.rows(text, np.arange(length, self.lengths[text]))
        self.cache.k[:, stale] = float("nan")
        self.cache.v[:, stale] = float("nan")
        self.lengths[text] = length

    def rows(self, text: int, positions: np.ndarray) -> np.ndarray:
        return self.tables[text][positions // self.page_size] * self.page_size + positions % self.page_size


def random_tokens(count: int, vocab_size: int, *, seed: int) -> list[int]:
    return np.random.default_rng(seed).integers(0, vocab_size, count).tolist()
