"""The pair without rounds: whole texts through caches that nobody used before. What the engine is held against."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from dspark.engine.kv_pool import PagePool
from dspark.engine.packing import pack
from dspark.engine.transfer import upload

if TYPE_CHECKING:
    from dspark.engine.engine import Engine
    from dspark.engine.models.kv_cache import KVCache

_TOKENS_AT_ONCE = 1024


class PlainForward:
    """Forwards of the target of `engine`, and the drafter's main-cache writes, one text at a time or side by side.

    No scheduler, draft block, verification, slot or graph has a part in them.
    """

    def __init__(self, engine: Engine) -> None:
        self._target = engine.target
        self._drafter = engine.drafter
        self._device = engine.device
        self._page_size = engine.page_size

    def logits(self, tokens: Sequence[int], *, step: int | None = None) -> np.ndarray:
        """Logits [n, V] fp32 behind each of n tokens, computed `step` tokens at a time; None: all at once."""
        count = len(tokens)
        fresh = _FreshCaches(self, [count])
        step = step or count
        pieces = [
            fresh.run(tokens[start : start + step], np.array([start]), np.array([min(step, count - start)]))
            for start in range(0, count, step)
        ]
        return torch.cat(pieces).cpu().numpy()

    def logits_behind(self, texts: Sequence[Sequence[int]]) -> Iterator[np.ndarray]:
        """Logits [V] fp32 behind the last token of each text."""
        for some in _in_pieces(texts):
            counts = np.array([len(text) for text in some])
            fresh = _FreshCaches(self, counts.tolist())
            tokens = [token for text in some for token in text]
            yield from fresh.run(tokens, np.zeros_like(counts), counts, rows=np.cumsum(counts) - 1).cpu().numpy()

    def caches(self, tokens: Sequence[int]) -> dict[str, tuple[Tensor, Tensor]]:
        """K and V [L, n, Hkv, D] of n tokens, by the model whose cache they are of."""
        count = len(tokens)
        fresh = _FreshCaches(self, [count])
        fresh.run(tokens, np.array([0]), np.array([count]), rows=np.array([count - 1]))
        rows = upload(fresh.pool.cache_rows(np.zeros(count, dtype=np.int64), np.arange(count)), self._device)
        return {name: (cache.k[:, rows], cache.v[:, rows]) for name, cache in fresh.caches.items()}


class _FreshCaches:
    """Caches for texts of `lengths` tokens."""

    def __init__(self, plain: PlainForward, lengths: Sequence[int]) -> None:
        self._plain = plain
        page_size = plain._page_size
        pages = np.array([-(-length // page_size) for length in lengths])
        total = 1 + int(pages.sum())
        self.pool = PagePool(total, page_size, num_slots=len(pages), max_pages_per_slot=int(pages.max()))
        self.pool.grow(np.arange(len(pages)), pages)
        self.caches: dict[str, KVCache] = {"target": plain._target.new_cache(total, page_size)}
        if plain._drafter is not None:
            self.caches["drafter"] = plain._drafter.new_cache(total, page_size)

    @torch.inference_mode()
    def run(
        self, tokens: Sequence[int], starts: np.ndarray, counts: np.ndarray, *, rows: np.ndarray | None = None
    ) -> Tensor:
        """Run packed `tokens`, `counts` [R] of each text from positions `starts` [R] on: logits of all or of `rows`."""
        plain = self._plain
        index = pack(self.pool, np.arange(len(counts)), starts, counts)
        batch = index.batch(torch.tensor(list(tokens)), plain._device)
        drafter = plain._drafter
        output = plain._target.forward(
            batch,
            self.caches["target"],
            logit_rows=None if rows is None else upload(rows, plain._device),
            feature_layers=() if drafter is None else drafter.feature_layers,
        )
        if drafter is not None and output.features is not None:
            drafter.write_context(output.features, batch, self.caches["drafter"])
        return output.logits


def _in_pieces(texts: Sequence[Sequence[int]]) -> Iterator[list[Sequence[int]]]:
    """Texts in order, as many together as have `_TOKENS_AT_ONCE` tokens."""
    some: list[Sequence[int]] = []
    for text in texts:
        if some and sum(map(len, some)) + len(text) > _TOKENS_AT_ONCE:
            yield some
            some = []
        some.append(text)
    if some:
        yield some
