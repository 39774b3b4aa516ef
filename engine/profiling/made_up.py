"""Requests made up to be measured, in slots, pages and caches as a decode loop has them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch

from dspark.engine.kv_pool import PagePool
from dspark.engine.ngram.lookup import Lookup
from dspark.engine.orders import RoundOrder
from dspark.engine.slots import SlotTable

if TYPE_CHECKING:
    from dspark.engine.engine import Engine
    from dspark.engine.models.kv_cache import KVCache


class MadeUpRequests:
    """Random text in every slot, over the engine's own caches, which are overwritten."""

    def __init__(self, engine: Engine, *, seed: int) -> None:
        self._steps = engine.gamma
        self._page_size = engine.page_size
        self._num_pages = engine.num_pages
        self._max_context = engine.max_context
        self._concurrency = engine.concurrency
        self.slots = SlotTable(engine.concurrency, max_context=engine.max_context, gamma=engine.gamma)
        self.pool = PagePool(
            engine.num_pages,
            engine.page_size,
            num_slots=engine.concurrency,
            max_pages_per_slot=self._pages(engine.max_context),
        )
        rng = np.random.default_rng(seed)
        self.slots.tokens[:] = rng.integers(0, engine.target.config.vocab_size, self.slots.tokens.shape)
        self.slots.seeds[:] = rng.integers(0, 1 << 62, engine.concurrency)
        # None of them is new, and none runs out of tokens.
        self.slots.emitted[:] = 1
        self.slots.limit[:] = self.slots.prompt_len[:] = 2 * engine.max_context
        self.slots.ignore_eos[:] = True
        self._lookup = None if engine.ngram is None else Lookup(self.slots, engine.ngram)
        self.generator = torch.Generator(device=engine.device).manual_seed(seed)
        for cache in (engine.target_cache, engine.draft_cache):
            if cache is not None:
                _fill(cache, self.generator)

    def longest_context(self, num_requests: int) -> int:
        """Both models see it, and the KV pool holds it with a block behind it, for each request."""
        pages_each = (self._num_pages - 1) // num_requests
        return min(self._max_context, pages_each * self._page_size) - 1 - self._steps

    def occupy(self, num_requests: int, context_tokens: int, *, sampled: bool) -> np.ndarray:
        """Give the first slots pages and a context; returns them, [R]."""
        for slot in range(self._concurrency):
            self.pool.release(slot)
        rows = np.arange(num_requests)
        self.pool.grow(rows, np.full(num_requests, self._pages(context_tokens)))
        self.slots.context_len[rows] = context_tokens
        self.slots.temperature[rows] = 1.0 if sampled else 0.0
        return rows

    def draft_order(self, rows: np.ndarray, steps: int) -> RoundOrder:
        """A round that drafts for slots `rows` [R] and verifies nothing; what the host drafts, it does here."""
        proposals = None if self._lookup is None else self._lookup.propose(rows, steps)
        return RoundOrder(steps, np.zeros(len(rows), dtype=np.int64), proposals=proposals)

    def noise(self, *shape: int) -> torch.Tensor:
        """Logits that are neither flat nor certain."""
        return torch.randn(shape, generator=self.generator, device=self.generator.device).mul_(3)

    def _pages(self, context_tokens: int) -> int:
        return -(-(context_tokens + 1 + self._steps) // self._page_size)


def even_lengths(num_tokens: int, num_requests: int) -> np.ndarray:
    """Drafted tokens to verify, [R], whose requests have `num_tokens` packed tokens, anchors included."""
    share, rest = divmod(num_tokens, num_requests)
    return np.full(num_requests, share - 1) + (np.arange(num_requests) < rest)


def _fill(cache: KVCache, generator: torch.Generator) -> None:
    """Ordinary numbers in every row but the padding page's: memory that nobody wrote reads faster than it should."""
    for rows in (cache.k, cache.v):
        pages = rows.view(rows.shape[0], -1, cache.page_size, *rows.shape[2:])[:, 1:]  # [L, pages, P, Hkv, D]
        one = torch.randn(pages.shape[2:], generator=generator, device=generator.device)
        pages.copy_(one.to(rows.dtype).expand_as(pages))
