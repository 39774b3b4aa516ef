"""Times the eager runner: the very calls that a decode loop makes, on requests made up for the purpose."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import numpy as np
import torch

from dspark.engine.eager import EagerRunner
from dspark.engine.orders import RoundOrder
from dspark.engine.profiling.made_up import MadeUpRequests, even_lengths
from dspark.engine.profiling.plan import token_ladder
from dspark.engine.profiling.stopwatch import Timed, timed
from dspark.engine.profiling.timer import Sample
from dspark.engine.proposals import DraftOutput
from dspark.kernels import TopQ

if TYPE_CHECKING:
    from dspark.engine.batch import PackedBatch
    from dspark.engine.engine import Engine


class EagerTimer:
    """Runs rounds of made-up requests through an :class:`EagerRunner`.

    Nothing is padded eagerly, so its buckets are merely the counts that are measured.
    """

    runner = "eager"
    short_context = None

    def __init__(self, engine: Engine, *, max_batch_tokens: int, seed: int) -> None:
        self.token_buckets = token_ladder(max_batch_tokens)
        self.request_buckets = token_ladder(engine.concurrency)
        self._device = engine.device
        self._steps = engine.gamma
        self._requests = MadeUpRequests(engine, seed=seed)
        self._watched = _WatchedEngine(engine)
        self._runner = EagerRunner(cast("Engine", self._watched), self._requests.slots, self._requests.pool)
        vocab_size = engine.target.config.vocab_size
        self._logits = self._requests.noise(max_batch_tokens, vocab_size)
        self._draft = None
        if self._steps:
            shape, generator = (engine.concurrency, self._steps), self._requests.generator
            top_k = engine.draft_top_k
            self._draft = DraftOutput(
                tokens=torch.randint(vocab_size, shape, generator=generator, device=self._device),
                logits=None if engine.drafter is None or top_k else self._requests.noise(*shape, vocab_size),
                confidence_logits=torch.zeros(shape, device=self._device),
                top=TopQ.uniform(*shape, count=top_k, device=self._device) if top_k else None,
            )

    def longest_context(self, num_requests: int) -> int:
        """As models and the KV pool allow."""
        return self._requests.longest_context(num_requests)

    @torch.inference_mode()
    def measure_target(self, num_tokens: int, *, num_requests: int, context_tokens: int) -> Sample:
        """The target step inside a round of verification."""
        rows = self._requests.occupy(num_requests, context_tokens, sampled=False)
        self._watched.logits = None
        self._runner.place(rows)
        self._verify(rows, num_tokens)
        step = self._watched.step
        assert step is not None, "a verification runs the target"
        return Sample(_bucket(step.result.shape[0], self.token_buckets), step.wall_s, step.device_s)

    @torch.inference_mode()
    def measure_draft(self, num_requests: int, *, context_tokens: int, steps: int, sampled: bool) -> Sample:
        """A block of every request."""
        rows = self._requests.occupy(num_requests, context_tokens, sampled=sampled)
        self._runner.place(rows)
        block = timed(lambda: self._runner.draft(rows, self._requests.draft_order(rows, steps)), self._device)
        return Sample(_bucket(num_requests, self.request_buckets), block.wall_s, block.device_s)

    @torch.inference_mode()
    def measure_verification(self, num_tokens: int, *, num_requests: int, context_tokens: int, sampled: bool) -> Sample:
        """A round of verification whose target step answers at once."""
        rows = self._requests.occupy(num_requests, context_tokens, sampled=sampled)
        self._watched.logits = self._logits
        self._runner.place(rows)
        verification = timed(lambda: self._verify(rows, num_tokens), self._device)
        return Sample(_bucket(num_requests, self.request_buckets), verification.wall_s, verification.device_s)

    def _verify(self, rows: np.ndarray, num_tokens: int) -> None:
        order = RoundOrder(self._steps, even_lengths(num_tokens, len(rows)))
        draft = self._draft
        if draft is None or int(order.lengths.max()) == 0:
            self._runner.verify(rows, order, None).result.wait()
            return
        # Prefixes of what was made up for the largest batch.
        n = len(rows)
        logits = None if draft.logits is None else draft.logits[:n]
        top = None if draft.top is None else draft.top[:n]
        block = DraftOutput(draft.tokens[:n], logits, draft.confidence_logits[:n], top=top)
        self._runner.verify(rows, order, block).result.wait()


class _WatchedEngine:
    """The engine as a runner sees it, with a stop-watch at the target's step, or logits that are there already."""

    def __init__(self, engine: Engine) -> None:
        self.device = engine.device
        self.config = engine.config
        self.draft_top_k = engine.draft_top_k
        self.stop_id_tensor = engine.stop_id_tensor
        self.drafter = engine.drafter
        self.draft_cache = engine.draft_cache
        self.logits: torch.Tensor | None = None  # [most tokens, V]
        self.step: Timed[torch.Tensor] | None = None
        self._target_step = engine.target_step

    def target_step(self, batch: PackedBatch, *, logit_rows: torch.Tensor | None = None) -> torch.Tensor:
        """The engine's own, timed."""
        if self.logits is not None:
            return self.logits[: batch.token_ids.shape[0]]
        self.step = timed(lambda: self._target_step(batch, logit_rows=logit_rows), self.device)
        return self.step.result


def _bucket(count: int, buckets: tuple[int, ...]) -> int:
    return next(bucket for bucket in buckets if bucket >= count)
