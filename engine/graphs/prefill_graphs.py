"""Graphs of the target over packed prompts, one a bucket of tokens: launched one by one, its kernels would wait for
the host many times as long as they run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch

from dspark.engine.batch import PackedBatch
from dspark.engine.graphs.buckets import Buckets, context_bucket, prefill_buckets
from dspark.engine.graphs.capture import GraphCapture, Replay
from dspark.engine.graphs.static_memory import StaticMemory
from dspark.engine.packing import Packing
from dspark.engine.transfer import upload
from dspark.kernels import AttentionLayout

if TYPE_CHECKING:
    from dspark.engine.engine import Engine

# Attention lays its programs out for the longest prompt of a batch: most are shorter than this.
_SHORT_PROMPT = 256


@dataclass(frozen=True, slots=True)
class _Shape:
    """What a graph is captured for."""

    tokens: int
    longest_prompt: int
    context: int


class _Inputs:
    """Static memory of a bucket: T tokens of R requests behind one another, so that one copy brings them all."""

    def __init__(self, num_tokens: int, num_requests: int, device: torch.device) -> None:
        self.num_tokens, self.num_requests = num_tokens, num_requests
        self._sizes = (num_tokens, num_tokens, num_tokens, num_requests + 1, num_requests, num_requests, num_requests)
        self._memory = torch.zeros(sum(self._sizes), dtype=torch.int64, device=device)
        (
            self.token_ids,  # [T]
            self.positions,  # [T]
            self.cache_rows,  # [T]
            self.query_starts,  # [R+1]
            self.kv_lens,  # [R]
            self.slots,  # [R]
            self.logit_rows,  # [R]
        ) = self._memory.split(self._sizes)

    def send(self, index: Packing, tokens: np.ndarray, *, slots: np.ndarray, logit_rows: np.ndarray) -> None:
        """Bring a batch to the device. Padding tokens go to the padding page, padding requests see nothing."""
        starts = np.full(self.num_requests + 1, index.query_starts[-1], dtype=np.int64)
        starts[: len(index.query_starts)] = index.query_starts
        parts = (tokens, index.positions, index.cache_rows, starts, index.kv_lens, slots, logit_rows)
        memory = np.zeros(len(self._memory), dtype=np.int64)
        at = 0
        for part, size in zip(parts, self._sizes, strict=True):
            memory[at : at + len(part)] = part
            at += size
        self._memory.copy_(upload(memory, self._memory.device))


class PrefillGraphs:
    """From packed prompts to the logits behind them, with K and V of target and drafter written on the way."""

    def __init__(self, engine: Engine, memory: StaticMemory, capture: GraphCapture) -> None:
        self._engine = engine
        self._memory = memory
        self._capture = capture
        self.buckets: Buckets = prefill_buckets(engine.prefill_chunk_tokens)
        self._longest = memory.sizes.max_pages * engine.page_size
        self._inputs: dict[int, _Inputs] = {}
        self._graphs: dict[_Shape, Replay] = {}

    def run(self, index: Packing, tokens: np.ndarray, *, slots: np.ndarray, logit_rows: np.ndarray) -> torch.Tensor:
        """Run `tokens` [T] of slots [R], laid out by `index`; logits [n, V] behind packed rows `logit_rows` [n].

        The device's block tables hold the slots' pages. The logits are good until the next graph of the target.
        """
        bucket = self.buckets.bucket_for(len(tokens))
        inputs = self._inputs.get(bucket)
        if inputs is None:
            # Every request has a token at least.
            requests = min(bucket, self._memory.sizes.concurrency)
            self._inputs[bucket] = inputs = _Inputs(bucket, requests, self._memory.logits.device)
        # Before a first capture too, which runs the batch once: then it is this very one.
        inputs.send(index, tokens, slots=slots, logit_rows=logit_rows)
        longest = _SHORT_PROMPT if index.max_query_len <= _SHORT_PROMPT < bucket else bucket
        shape = _Shape(bucket, longest, context_bucket(int(index.kv_lens.max()), self._longest))
        graph = self._graphs.get(shape)
        if graph is None:
            name = f"prefill of {bucket} tokens, prompts of {longest}, context {shape.context}"
            graph = self._capture.capture(lambda: self._run(inputs, shape), name=name)
            self._graphs[shape] = graph
        graph()
        return self._memory.logits[: len(logit_rows)]

    def _run(self, inputs: _Inputs, shape: _Shape) -> None:
        batch = PackedBatch(
            token_ids=inputs.token_ids,
            positions=inputs.positions,
            cache_rows=inputs.cache_rows,
            # Made anew for every graph: attention keeps its scratch memory in it.
            attention=AttentionLayout(
                block_tables=self._memory.tables.index_select(0, inputs.slots).to(torch.int32),
                query_starts=inputs.query_starts.to(torch.int32),
                kv_lens=inputs.kv_lens.to(torch.int32),
                page_size=self._engine.page_size,
                max_query_len=shape.longest_prompt,
                max_kv_len=shape.context,
            ),
        )
        self._engine.target_step(
            batch, logit_rows=inputs.logit_rows, logits_out=self._memory.logits[: inputs.num_requests]
        )
