"""All graphs of an engine, and the memory they share."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

import torch

from dspark.engine.graphs.buckets import SHORT_CONTEXT
from dspark.engine.graphs.capture import GraphCapture
from dspark.engine.graphs.draft_graphs import DraftGraphs
from dspark.engine.graphs.prefill_graphs import PrefillGraphs
from dspark.engine.graphs.static_memory import GraphSizes, StaticMemory
from dspark.engine.graphs.target_graphs import TargetGraphs, VerificationGraphs
from dspark.engine.progress import Progress
from dspark.engine.sampling import Sampling

if TYPE_CHECKING:
    from dspark.engine.engine import Engine
    from dspark.engine.models.drafter import Drafter


class DecodeGraphs:
    """Made once an engine; every run of it replays the same graphs."""

    def __init__(self, engine: Engine, sizes: GraphSizes, *, drafter: Drafter | None) -> None:
        self.memory = StaticMemory(sizes, engine.device)
        self._capture = GraphCapture(engine.device)
        self.target = TargetGraphs(engine, self.memory, self._capture)
        self.verification = VerificationGraphs(engine, self.memory, self._capture)
        self.prefill = PrefillGraphs(engine, self.memory, self._capture)
        self.drafts = None if drafter is None else DraftGraphs(engine, drafter, self.memory, self._capture)
        self._device = engine.device
        self.pool_bytes = 0

    @property
    def num_captured(self) -> int:
        """Graphs captured so far."""
        return self._capture.num_captured

    def capture_all(self, progress: Progress | None = None) -> None:
        """Capture what greedy requests of short context need, from the largest down.

        Graphs for prompts, sampled rows and longer contexts are captured when a batch first needs them, a fraction of a
        second each: most runs need few of them, and would pay for all at every start.
        """
        before = self._reserved_bytes()
        captures: list[tuple[str, Callable[[], None]]] = []
        for size in reversed(self.target.buckets.sizes):
            captures.append((f"target, {size} tokens", partial(self.target.prepare, size, SHORT_CONTEXT)))
        for size in reversed(self.verification.buckets.sizes):
            verification = partial(self.verification.prepare, size, Sampling.GREEDY)
            captures.append((f"verification, {size} requests", verification))
        if self.drafts is not None:
            for size in reversed(self.drafts.buckets.sizes):
                draft = partial(self.drafts.prepare, size, SHORT_CONTEXT, sampled=False)
                captures.append((f"draft, {size} requests", draft))
        for done, (name, capture) in enumerate(captures):
            if progress is not None:
                progress(name, done, len(captures))
            capture()
        if progress is not None:
            progress("captured", len(captures), len(captures))
        self.pool_bytes = max(self._reserved_bytes() - before, 0)

    def _reserved_bytes(self) -> int:
        if self._device.type != "cuda":
            return 0
        torch.cuda.synchronize(self._device)
        # What the warm-up before each capture left over belongs to nobody.
        torch.cuda.empty_cache()
        return torch.cuda.memory_reserved(self._device)
