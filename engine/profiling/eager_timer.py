"""Times the eager runner: the very calls that a decode loop makes, on requests made up for the purpose."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar, cast

import numpy as np
import torch

from dspark.engine.eager import EagerRunner
from dspark.engine.kv_pool import PagePool
from dspark.engine.profiling.plan import token_ladder
from dspark.engine.profiling.timer import Sample
from dspark.engine.proposals import DraftOutput
from dspark.engine.slots import SlotTable

if TYPE_CHECKING:
    from collections.abc import Callable

    from dspark.engine.batch import PackedBatch
    from dspark.engine.engine import Engine
    from dspark.engine.models.kv_cache import KVCache

_Result = TypeVar("_Result")


class EagerTimer:
    """Runs rounds of made-up requests through an :class:`EagerRunner` over the engine's own caches.

    Nothing is padded eagerly, so its buckets are merely the counts that are measured.
    """

    runner = "eager"

    def __init__(self, engine: Engine, *, max_batch_tokens: int, seed: int) -> None:
        self.token_buckets = token_ladder(max_batch_tokens)
        self.request_buckets = token_ladder(engine.concurrency)
        self._engine = engine
        self._steps = engine.gamma
        self._watched = _WatchedEngine(engine)
        self._slots = SlotTable(engine.concurrency, max_context=engine.max_context, gamma=engine.gamma)
        self._pool = PagePool(
            engine.num_pages,
            engine.page_size,
            num_slots=engine.concurrency,
            max_pages_per_slot=self._pages(engine.max_context),
        )
        self._runner = EagerRunner(cast("Engine", self._watched), self._slots, self._pool)
        rng = np.random.default_rng(seed)
        vocab_size = engine.target.config.vocab_size
        self._slots.tokens[:] = rng.integers(0, vocab_size, self._slots.tokens.shape)
        self._slots.seeds[:] = rng.integers(0, 1 << 62, engine.concurrency)
        generator = torch.Generator(device=engine.device).manual_seed(seed)
        self._draft = self._made_up_draft(generator)
        self._logits = _noise((max_batch_tokens, vocab_size), generator)
        for cache in (engine.target_cache, engine.draft_cache):
            if cache is not None:
                _fill(cache, generator)

    def longest_context(self, num_requests: int) -> int:
        """Both models see it, and the KV pool holds it with a block behind it, for each request."""
        page_size = self._engine.page_size
        pages_each = (self._engine.num_pages - 1) // num_requests
        return min(self._engine.max_context, pages_each * page_size) - 1 - self._steps

    @torch.inference_mode()
    def measure_target(self, num_tokens: int, *, num_requests: int, context_tokens: int) -> Sample:
        """The target step inside a round of verification."""
        rows = self._occupy(num_requests, context_tokens, sampled=False)
        self._watched.logits = None
        self._verify(rows, num_tokens)
        timed = self._watched.timed
        assert timed is not None, "a verification runs the target"
        return replace(timed, bucket=_bucket(timed.bucket, self.token_buckets))

    @torch.inference_mode()
    def measure_draft(self, num_requests: int, *, context_tokens: int) -> Sample:
        """A whole block of every request."""
        rows = self._occupy(num_requests, context_tokens, sampled=False)
        _, wall_s, device_s = _timed(lambda: self._runner.draft(rows, self._steps), self._engine.device)
        return Sample(_bucket(num_requests, self.request_buckets), wall_s, device_s)

    @torch.inference_mode()
    def measure_verification(self, num_tokens: int, *, num_requests: int, context_tokens: int, sampled: bool) -> Sample:
        """A round of verification whose target step answers at once."""
        rows = self._occupy(num_requests, context_tokens, sampled=sampled)
        self._watched.logits = self._logits
        _, wall_s, device_s = _timed(lambda: self._verify(rows, num_tokens), self._engine.device)
        return Sample(_bucket(num_requests, self.request_buckets), wall_s, device_s)

    def _verify(self, rows: np.ndarray, num_tokens: int) -> None:
        share, rest = divmod(num_tokens, len(rows))
        lengths = np.full(len(rows), share - 1) + (np.arange(len(rows)) < rest)
        longest = int(lengths.max())
        draft = self._draft
        if draft is None or longest == 0:
            self._runner.verify(rows, lengths, None)
            return
        assert draft.logits is not None
        # Prefixes of what was made up for the largest batch.
        logits, tokens = draft.logits[: len(rows)], draft.tokens[: len(rows)]
        self._runner.verify(rows, lengths, DraftOutput(tokens, logits, draft.confidence_logits[: len(rows)]))

    def _occupy(self, num_requests: int, context_tokens: int, *, sampled: bool) -> np.ndarray:
        """Give the first `num_requests` slots pages and a context; returns them."""
        for slot in range(self._engine.concurrency):
            self._pool.release(slot)
        rows = np.arange(num_requests)
        self._pool.grow(rows, np.full(num_requests, self._pages(context_tokens)))
        self._slots.context_len[rows] = context_tokens
        self._slots.temperature[rows] = 1.0 if sampled else 0.0
        return rows

    def _pages(self, context_tokens: int) -> int:
        return -(-(context_tokens + 1 + self._steps) // self._engine.page_size)

    def _made_up_draft(self, generator: torch.Generator) -> DraftOutput | None:
        engine, device = self._engine, self._engine.device
        if engine.drafter is None:
            return None
        shape = (engine.concurrency, self._steps)
        vocab_size = engine.target.config.vocab_size
        return DraftOutput(
            tokens=torch.randint(vocab_size, shape, generator=generator, device=device),
            logits=_noise((*shape, vocab_size), generator),
            confidence_logits=torch.zeros(shape, device=device),
        )


class _WatchedEngine:
    """The engine as a runner sees it, with a stop-watch at the target's step, or logits that are there already."""

    def __init__(self, engine: Engine) -> None:
        self.device = engine.device
        self.config = engine.config
        self.drafter = engine.drafter
        self.draft_cache = engine.draft_cache
        self.logits: torch.Tensor | None = None  # [most tokens, V]
        self.timed: Sample | None = None
        self._step = engine.target_step

    def target_step(self, batch: PackedBatch, *, logit_rows: torch.Tensor | None = None) -> torch.Tensor:
        """The engine's own, timed."""
        num_tokens = batch.token_ids.shape[0]
        if self.logits is not None:
            return self.logits[:num_tokens]
        logits, wall_s, device_s = _timed(lambda: self._step(batch, logit_rows=logit_rows), self.device)
        self.timed = Sample(num_tokens, wall_s, device_s)
        return logits


def _timed(call: Callable[[], _Result], device: torch.device) -> tuple[_Result, float, float | None]:
    """What `call` returns, its wall-clock seconds and the device's own."""
    if device.type != "cuda":
        start_s = time.perf_counter()
        result = call()
        return result, time.perf_counter() - start_s, None
    before, after = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize(device)
    start_s = time.perf_counter()
    before.record()
    result = call()
    after.record()
    torch.cuda.synchronize(device)
    return result, time.perf_counter() - start_s, before.elapsed_time(after) / 1e3


def _bucket(count: int, buckets: tuple[int, ...]) -> int:
    return next(bucket for bucket in buckets if bucket >= count)


def _noise(shape: tuple[int, ...], generator: torch.Generator) -> torch.Tensor:
    """Logits that are neither flat nor certain."""
    return torch.randn(shape, generator=generator, device=generator.device).mul_(3)


def _fill(cache: KVCache, generator: torch.Generator) -> None:
    """Ordinary numbers in every row but the padding page's: memory that nobody wrote reads faster than it should."""
    for rows in (cache.k, cache.v):
        pages = rows.view(rows.shape[0], -1, cache.page_size, *rows.shape[2:])[:, 1:]  # [L, pages, P, Hkv, D]
        one = torch.randn(pages.shape[2:], generator=generator, device=generator.device)
        pages.copy_(one.to(rows.dtype).expand_as(pages))
