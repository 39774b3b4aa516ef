"""Graphs of a draft block, backbone, Markov walk and confidence, one a bucket of requests and a number of tokens.

Where the device allocates, how much of each block is verified is decided at its end.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dspark.engine.draft_noise import DraftNoise
from dspark.engine.graphs.buckets import Buckets, context_bucket, request_buckets
from dspark.engine.graphs.capture import GraphCapture, Replay
from dspark.engine.graphs.static_memory import StaticMemory
from dspark.engine.proposals import DraftBlock, DraftOutput
from dspark.kernels import AttentionLayout, NoiseKeys, allocate_lengths, prepare_batch

if TYPE_CHECKING:
    from dspark.engine.engine import Engine
    from dspark.engine.models.drafter import Drafter


class DraftGraphs:
    """From the host's round to drafted tokens, their logits and their confidence."""

    def __init__(self, engine: Engine, drafter: Drafter, memory: StaticMemory, capture: GraphCapture) -> None:
        self._engine = engine
        self._drafter = drafter
        self._memory = memory
        self._capture = capture
        self.buckets: Buckets = request_buckets(memory.sizes.concurrency)
        self._longest = memory.sizes.max_pages * engine.page_size
        self._graphs: dict[tuple[int, int, bool, int], Replay] = {}

    def prepare(self, num_requests: int, context: int, *, sampled: bool) -> None:
        """Capture the graphs that such a batch's blocks run in, unless they are there."""
        steps = self._memory.sizes.steps
        self._graph(self.buckets.bucket_for(num_requests), context_bucket(context, self._longest), sampled, steps)

    def replay(self, num_requests: int, context: int, *, sampled: bool, steps: int | None = None) -> DraftOutput:
        """Draft `steps` tokens for each of `num_requests`, of which the longest sees `context` rows.

        The output is static memory. steps: None = whole blocks.
        """
        steps = steps or self._memory.sizes.steps
        assert steps <= self._memory.sizes.steps, "a block has no more tokens than there is memory for"
        self._graph(self.buckets.bucket_for(num_requests), context_bucket(context, self._longest), sampled, steps)()
        output = self._output(num_requests, steps)
        if not sampled or output.top is not None:
            # Every token was certain, and nobody corrected the logits; or the block was only worked out in them.
            output.logits = None
        if not sampled:
            output.top = None
        return output

    def _graph(self, bucket: int, context: int, sampled: bool, steps: int) -> Replay:
        wanted = (bucket, context, sampled, steps)
        if wanted not in self._graphs:
            for length in self._memory.sizes.captured_with(steps):
                self._add(bucket, context, sampled, length)
        return self._graphs[wanted]

    def _add(self, bucket: int, context: int, sampled: bool, steps: int) -> None:
        key = (bucket, context, sampled, steps)
        if key not in self._graphs:
            kind = "sampled" if sampled else "greedy"
            name = f"{kind} drafting of {steps} tokens for {bucket} requests, context {context}"
            self._graphs[key] = self._capture.capture(lambda: self._run(*key), name=name)

    def _run(self, bucket: int, context: int, sampled: bool, steps: int) -> None:
        memory, drafter, page_size = self._memory, self._drafter, self._engine.page_size
        width = drafter.block_width
        inputs = memory.draft_inputs.prefix(bucket, bucket * width)
        prepare_batch(
            memory.host_round,
            memory.state,
            memory.tables,
            None,
            page_size=page_size,
            out=inputs,
            block_width=width,
            mask_token_id=drafter.mask_token_id,
        )
        noise = None
        if sampled:
            noise = NoiseKeys(
                seeds=inputs.seeds,
                positions=inputs.starts,
                generations=inputs.generations,
                purpose=DraftNoise.of(self._engine.config.acceptance).purpose,
            )
        block = DraftBlock(
            anchors=inputs.anchors,
            starts=inputs.starts,
            cache_rows=inputs.cache_rows,
            attention=AttentionLayout(
                block_tables=inputs.block_tables,
                query_starts=inputs.query_starts,
                kv_lens=inputs.kv_lens,
                page_size=page_size,
                max_query_len=width,
                max_kv_len=context,
                causal=False,
            ),
            noise=noise,
            temperature=inputs.temperature,
            steps=steps,
            top_k=memory.sizes.draft_top_k,
            token_ids=inputs.token_ids,
            positions=inputs.positions,
        )
        assert self._engine.draft_cache is not None, "an engine that drafts has a draft cache"
        output = drafter.draft(block, self._engine.draft_cache, out=self._output(bucket, steps))
        if self._engine.allocates:
            allocate_lengths(
                output.confidence_logits,
                inputs.lengths,
                temperatures=self._engine.temperature_tensor[:steps],
                budget=memory.host_round[0, 1:2],
                out=memory.allocated[:bucket],
            )

    def _output(self, num_requests: int, steps: int) -> DraftOutput:
        memory = self._memory
        assert memory.drafts is not None
        logits, top = memory.q_of(num_requests, steps)
        if top is not None:
            # Between a verification and the target's next step nobody reads the target's logits, which are more.
            logits = memory.logits[: num_requests * steps].view(num_requests, steps, -1)
        assert logits is not None, "an engine that drafts keeps q"
        return DraftOutput(
            tokens=memory.drafts[:num_requests, :steps],
            logits=logits,
            confidence_logits=memory.confidence_logits[:num_requests, :steps],
            top=top,
        )
