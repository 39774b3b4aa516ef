"""Graphs of the target's forward, one a bucket of packed tokens, and of the verification and commit behind it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dspark.engine.batch import PackedBatch
from dspark.engine.graphs.buckets import Buckets, context_bucket, request_buckets, token_buckets
from dspark.engine.graphs.capture import GraphCapture, Replay
from dspark.engine.graphs.static_memory import StaticMemory
from dspark.engine.sampling import Sampling
from dspark.kernels import AttentionLayout, SamplingRows, commit_round, prepare_batch, verify

if TYPE_CHECKING:
    from dspark.engine.engine import Engine


class TargetGraphs:
    """From the host's round to logits [T, V], with K and V of target and drafter written on the way."""

    def __init__(self, engine: Engine, memory: StaticMemory, capture: GraphCapture) -> None:
        self._engine = engine
        self._memory = memory
        self._capture = capture
        self.buckets: Buckets = token_buckets(memory.sizes.concurrency, memory.sizes.steps)
        self._requests: Buckets = request_buckets(memory.sizes.concurrency)
        self._longest = memory.sizes.max_pages * engine.page_size
        self._graphs: dict[tuple[int, int], Replay] = {}

    @property
    def short_context(self) -> int | None:
        """Visible length up to which a batch runs graphs of their own; None: one graph serves every length."""
        bound = context_bucket(1, self._longest)
        return bound if bound < self._longest else None

    def prepare(self, num_tokens: int, context: int) -> None:
        """Capture the graph that such a batch runs in, unless there is one."""
        self._graph(self.buckets.bucket_for(num_tokens), context_bucket(context, self._longest))

    def replay(self, num_tokens: int, context: int) -> int:
        """Run a batch of `num_tokens` whose longest request sees `context` rows; returns its bucket."""
        bucket = self.buckets.bucket_for(num_tokens)
        self._graph(bucket, context_bucket(context, self._longest))()
        return bucket

    def _graph(self, bucket: int, context: int) -> Replay:
        graph = self._graphs.get((bucket, context))
        if graph is None:
            name = f"the target at {bucket} tokens, context {context}"
            graph = self._capture.capture(lambda: self._run(bucket, context), name=name)
            self._graphs[bucket, context] = graph
        return graph

    def _run(self, bucket: int, context: int) -> None:
        memory, page_size = self._memory, self._engine.page_size
        # As many requests as could share so many tokens, and no fewer than verification's bucket looks at.
        requests = self._requests.bucket_for(min(bucket, memory.sizes.concurrency))
        inputs = memory.target_inputs.prefix(requests, bucket)
        prepare_batch(
            memory.host_round,
            memory.state,
            memory.tables,
            memory.drafts,
            page_size=page_size,
            out=inputs,
            allocated=memory.allocated if self._engine.allocates else None,
        )
        batch = PackedBatch(
            token_ids=inputs.token_ids,
            positions=inputs.positions,
            cache_rows=inputs.cache_rows,
            # Made anew for every graph: attention keeps its scratch memory in it.
            attention=AttentionLayout(
                block_tables=inputs.block_tables,
                query_starts=inputs.query_starts,
                kv_lens=inputs.kv_lens,
                page_size=page_size,
                max_query_len=min(1 + memory.sizes.steps, bucket),
                max_kv_len=context,
            ),
        )
        self._engine.target_step(batch, logits_out=memory.logits[:bucket])


class VerificationGraphs:
    """From logits and drafted tokens to what the round gives each request and where it then stands.

    One a bucket of requests and not of tokens: where a request's logits lie is a number on the device. Where a drafted
    token's q lies depends on how many tokens its block has, so graphs that read q are one a number of them too.
    """

    def __init__(self, engine: Engine, memory: StaticMemory, capture: GraphCapture) -> None:
        self._stop_ids = engine.stop_id_tensor
        self._acceptance = engine.config.acceptance
        self._memory = memory
        self._capture = capture
        self.buckets: Buckets = request_buckets(memory.sizes.concurrency)
        self._graphs: dict[tuple[int, Sampling, int], Replay] = {}

    def prepare(self, num_requests: int, sampling: Sampling) -> None:
        """Capture the graphs that such a batch's blocks run in, unless they are there."""
        self._graph(self.buckets.bucket_for(num_requests), sampling, self._memory.sizes.steps)

    def replay(self, num_requests: int, sampling: Sampling, *, steps: int | None = None) -> None:
        """Decide the first `num_requests` rows of the static result, and advance their requests.

        steps: tokens that were drafted for each; None = whole blocks, or nothing at all.
        """
        self._graph(self.buckets.bucket_for(num_requests), sampling, steps or self._memory.sizes.steps)()

    def _graph(self, bucket: int, sampling: Sampling, steps: int) -> Replay:
        sizes = self._memory.sizes
        together = sizes.captured_with(steps)
        if sampling is Sampling.GREEDY or not sizes.keeps_q:
            # Drafted tokens are certain and lie where those of whole blocks do: one graph does for all.
            steps, together = sizes.steps, [sizes.steps]
        if (bucket, sampling, steps) not in self._graphs:
            for length in together:
                self._add(bucket, sampling, length)
        return self._graphs[bucket, sampling, steps]

    def _add(self, bucket: int, sampling: Sampling, steps: int) -> None:
        key = (bucket, sampling, steps)
        if key not in self._graphs:
            name = f"{sampling.value} verification of {bucket} requests with {steps} drafted tokens"
            # The run before a capture is to take no request further, and shorter blocks than the one at hand have no q
            # where its last tokens look for it: nobody takes part.
            inputs = self._memory.target_inputs
            lengths, query_starts = inputs.lengths.clone(), inputs.query_starts.clone()
            inputs.lengths.fill_(-1)
            inputs.query_starts.zero_()
            self._graphs[key] = self._capture.capture(lambda: self._run(*key), name=name)
            inputs.lengths.copy_(lengths)
            inputs.query_starts.copy_(query_starts)

    def _run(self, bucket: int, sampling: Sampling, steps: int) -> None:
        memory = self._memory
        inputs = memory.target_inputs.prefix(bucket, 0)
        # Greedy rows have a one-hot q.
        q, top = (None, None) if sampling is Sampling.GREEDY else memory.q_of(bucket, steps)
        verdict = verify(
            memory.logits,
            query_starts=inputs.query_starts,
            lengths=inputs.lengths,
            draft_tokens=memory.drafts[:bucket] if memory.drafts is not None else None,
            draft_logits=q,
            rows=SamplingRows(
                temperature=inputs.temperature,
                top_k=inputs.top_k,
                top_p=inputs.top_p,
                seeds=inputs.seeds,
                all_greedy=sampling is Sampling.GREEDY,
                any_truncated=sampling is Sampling.TRUNCATED,
            ),
            positions=inputs.starts,
            generations=inputs.generations,
            acceptance=self._acceptance,
            max_length=steps,
            draft_top=top,
        )
        commit_round(
            memory.state,
            slots=inputs.slots,
            lengths=inputs.lengths,
            accepted=verdict.accepted,
            next_tokens=verdict.next_token,
            drafts=memory.drafts[:bucket] if memory.drafts is not None else None,
            logits=memory.logits,
            query_starts=inputs.query_starts,
            stop_ids=self._stop_ids,
            out=memory.result[:bucket],
        )
