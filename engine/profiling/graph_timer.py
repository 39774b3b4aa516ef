"""Times graph replays inside the rounds of a graph runner, on requests made up for the purpose."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import torch

from dspark.engine.graphs.decode_graphs import DecodeGraphs
from dspark.engine.graphs.runner import GraphRunner
from dspark.engine.orders import RoundOrder
from dspark.engine.profiling.made_up import MadeUpRequests, even_lengths
from dspark.engine.profiling.stopwatch import Timed, timed
from dspark.engine.profiling.timer import Sample
from dspark.engine.sampling import Sampling

if TYPE_CHECKING:
    from dspark.engine.engine import Engine
    from dspark.engine.graphs.buckets import Buckets
    from dspark.engine.proposals import DraftOutput


class GraphTimer:
    """Runs rounds of made-up requests through a :class:`GraphRunner`.

    Device times are of the replay alone; wall times also hold what the host does around it. A graph that nobody has
    captured yet is captured by its first run.
    """

    runner = "graphs"

    def __init__(self, engine: Engine, graphs: DecodeGraphs, *, max_batch_tokens: int, seed: int) -> None:
        self._requests = MadeUpRequests(engine, seed=seed)
        self._watched = _WatchedGraphs(graphs, engine.device)
        watched = cast(DecodeGraphs, self._watched)
        self._runner = GraphRunner(engine, self._requests.slots, self._requests.pool, graphs=watched)
        largest = graphs.target.buckets.bucket_for(max_batch_tokens)
        self.token_buckets = tuple(size for size in graphs.target.buckets.sizes if size <= largest)
        self.request_buckets = graphs.verification.buckets.sizes
        self.short_context = graphs.target.short_context
        self._device = engine.device
        memory = graphs.memory
        memory.logits.normal_(std=3, generator=self._requests.generator)
        if memory.drafts is not None:
            if memory.draft_logits is not None:
                memory.draft_logits.normal_(std=3, generator=self._requests.generator)
            memory.drafts.random_(0, memory.sizes.vocab_size, generator=self._requests.generator)

    def longest_context(self, num_requests: int) -> int:
        """As models and the KV pool allow."""
        return self._requests.longest_context(num_requests)

    @torch.inference_mode()
    def measure_target(self, num_tokens: int, *, num_requests: int, context_tokens: int) -> Sample:
        """The replay inside a round of verification."""
        self._verify(num_tokens, num_requests, context_tokens, sampled=False)
        step = self._watched.target.last
        assert step is not None, "a verification replays the target"
        return Sample(step.result, step.wall_s, step.device_s)

    @torch.inference_mode()
    def measure_draft(self, num_requests: int, *, context_tokens: int, steps: int, sampled: bool) -> Sample:
        """The replay of a block's graph, and the round's way to the device; or the host's way to a block."""
        rows = self._requests.occupy(num_requests, context_tokens, sampled=sampled)
        self._runner.place(rows)
        # The first one brings new block tables along, as hardly a round of a decode does.
        for _ in range(2):
            self._runner.begin_round(timed=False)
            whole = timed(lambda: self._runner.draft(rows, self._requests.draft_order(rows, steps)), self._device)
        block = self._watched.block
        if block is None:
            # The device waits for the host, so that the host's time is its own.
            bucket = next(size for size in self.request_buckets if size >= num_requests)
            return Sample(bucket, whole.wall_s, None if whole.device_s is None else whole.wall_s)
        return Sample(self._watched.draft_bucket, whole.wall_s, block.device_s)

    @torch.inference_mode()
    def measure_verification(self, num_tokens: int, *, num_requests: int, context_tokens: int, sampled: bool) -> Sample:
        """The replay behind the target's, and the result's way to the host."""
        wall_s = self._verify(num_tokens, num_requests, context_tokens, sampled=sampled)
        step, verification = self._watched.target.last, self._watched.verification.last
        assert step is not None and verification is not None, "a verification replays both"
        return Sample(verification.result, max(wall_s - step.wall_s, verification.wall_s), verification.device_s)

    def _verify(self, num_tokens: int, num_requests: int, context_tokens: int, *, sampled: bool) -> float:
        """Wall-clock seconds of a round of verification."""
        rows = self._requests.occupy(num_requests, context_tokens, sampled=sampled)
        order = RoundOrder(0, even_lengths(num_tokens, num_requests))
        # The first one brings new block tables along, as hardly a round of a decode does.
        for _ in range(2):
            self._runner.place(rows)
            self._runner.begin_round(timed=False)
            round_ = timed(lambda: self._runner.verify(rows, order, None).result.wait(), self._device)
        return round_.wall_s


class _WatchedGraphs:
    """The graphs as a runner sees them, with a stop-watch at every replay."""

    def __init__(self, graphs: DecodeGraphs, device: torch.device) -> None:
        self.memory = graphs.memory
        self.target = _WatchedTarget(graphs, device)
        self.verification = _WatchedVerification(graphs, device)
        self.prefill = graphs.prefill
        self.drafts = None if graphs.drafts is None else self
        self.block: Timed[DraftOutput] | None = None
        self.draft_bucket = 0
        self._graphs = graphs
        self._drafts = graphs.drafts
        self._device = device

    @property
    def num_captured(self) -> int:
        """Graphs captured so far."""
        return self._graphs.num_captured

    def replay(self, num_requests: int, context: int, *, sampled: bool, steps: int | None = None) -> DraftOutput:
        """A draft block."""
        drafts = self._drafts
        assert drafts is not None
        self.block = timed(lambda: drafts.replay(num_requests, context, sampled=sampled, steps=steps), self._device)
        self.draft_bucket = drafts.buckets.bucket_for(num_requests)
        return self.block.result


class _WatchedTarget:
    def __init__(self, graphs: DecodeGraphs, device: torch.device) -> None:
        self.buckets: Buckets = graphs.target.buckets
        self.last: Timed[int] | None = None  # the bucket that ran
        self._graphs = graphs.target
        self._device = device

    def replay(self, num_tokens: int, context: int) -> int:
        self.last = timed(lambda: self._graphs.replay(num_tokens, context), self._device)
        return self.last.result


class _WatchedVerification:
    def __init__(self, graphs: DecodeGraphs, device: torch.device) -> None:
        self.buckets: Buckets = graphs.verification.buckets
        self.last: Timed[int] | None = None  # the bucket that ran
        self._graphs = graphs.verification
        self._device = device

    def replay(self, num_requests: int, sampling: Sampling, *, steps: int | None = None) -> None:
        def run() -> int:
            self._graphs.replay(num_requests, sampling, steps=steps)
            return self.buckets.bucket_for(num_requests)

        self.last = timed(run, self._device)
