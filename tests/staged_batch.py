"""Puts a batch of any shape before an engine's graphs, with no prompt behind it: what tests and benchmarks replay."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from dspark.engine import Engine
from dspark.engine.graphs.decode_graphs import DecodeGraphs
from dspark.engine.kv_pool import PagePool
from dspark.engine.sampling import Sampling
from dspark.kernels import RoundField, SlotField


@dataclass
class StagedBatch:
    """Requests in the first slots, their contexts random numbers in the caches."""

    graphs: DecodeGraphs
    gamma: int
    starts: np.ndarray  # [R]
    lengths: np.ndarray  # [R]
    state: torch.Tensor  # [R, fields]

    @classmethod
    def on(
        cls, engine: Engine, starts: np.ndarray, lengths: np.ndarray, *, temperature: float = 0.0, seed: int = 0
    ) -> StagedBatch:
        assert engine.graphs is not None
        memory = engine.graphs.memory
        rng = np.random.default_rng(seed)
        num_requests = len(starts)
        rows = np.zeros((1 + num_requests, len(RoundField)), dtype=np.int64)
        rows[0, 0] = num_requests
        body = rows[1:]
        body[:, RoundField.SLOT] = np.arange(num_requests)
        body[:, RoundField.LENGTH] = lengths
        body[:, RoundField.GENERATION] = 1
        body[:, RoundField.TEMPERATURE] = np.float32(temperature).view(np.int32)
        body[:, RoundField.TOP_P] = np.float32(1).view(np.int32)
        body[:, RoundField.SEED] = rng.integers(0, 2**62, num_requests)
        pool = PagePool(
            engine.num_pages, engine.page_size, num_slots=num_requests, max_pages_per_slot=engine.pages_per_request
        )
        slots = np.arange(num_requests)
        needed = pool.missing(slots, starts + 1 + max(engine.gamma, int(lengths.max())))
        # Page by page through the requests, as growing texts take them: no request's pages lie behind one another.
        for page in range(int(needed.max())):
            pool.grow(slots, (needed > page).astype(np.int64))
        memory.tables[:num_requests].copy_(torch.from_numpy(pool.tables))
        memory.host_round[: 1 + num_requests].copy_(torch.from_numpy(rows))
        state = np.zeros((num_requests, len(SlotField)), dtype=np.int64)
        state[:, SlotField.START] = starts
        state[:, SlotField.ANCHOR] = rng.integers(3, engine.target.config.vocab_size - 3, num_requests)
        state[:, SlotField.TOKENS_LEFT] = 1 << 30
        state[:, SlotField.IGNORE_EOS] = 1
        staged = cls(engine.graphs, engine.gamma, starts, lengths, torch.from_numpy(state).to(engine.device))
        staged.place()
        return staged

    @property
    def num_tokens(self) -> int:
        return len(self.starts) + int(self.lengths.sum())

    def place(self) -> None:
        """Put the requests back where they were before any verification."""
        self.graphs.memory.state[: len(self.starts)].copy_(self.state)

    def target(self) -> None:
        self.graphs.target.replay(self.num_tokens, int((self.starts + self.lengths).max()) + 1)

    def verification(self, sampling: Sampling = Sampling.GREEDY, *, steps: int | None = None) -> None:
        self.graphs.verification.replay(len(self.starts), sampling, steps=steps)

    def draft(self, *, sampled: bool = False, steps: int | None = None) -> None:
        assert self.graphs.drafts is not None
        context = int(self.starts.max()) + self.gamma
        self.graphs.drafts.replay(len(self.starts), context, sampled=sampled, steps=steps)


def fill_caches(engine: Engine, *, seed: int = 0) -> None:
    """Random K and V in every row but those of the padding page."""
    generator = torch.Generator(engine.device).manual_seed(seed)
    for cache in (engine.target_cache, engine.draft_cache):
        if cache is not None:
            for layer in (*cache.k_layers, *cache.v_layers):
                layer[engine.page_size :].normal_(generator=generator)
