"""The device side of a round as graph replays."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from dspark.engine.eager import EagerRunner, RoundTokens
from dspark.engine.graphs.decode_graphs import DecodeGraphs
from dspark.engine.graphs.staging import ResultReceiver, RoundSender, TableMirror
from dspark.engine.graphs.target_graphs import Sampling
from dspark.engine.kv_pool import PagePool
from dspark.engine.proposals import DraftOutput
from dspark.engine.slots import SlotTable

if TYPE_CHECKING:
    from dspark.engine.engine import Engine


class GraphRunner(EagerRunner):
    """Drafts and verifies by replaying graphs; contexts are computed eagerly, in chunks of any length."""

    def __init__(self, engine: Engine, slots: SlotTable, pool: PagePool, *, graphs: DecodeGraphs) -> None:
        super().__init__(engine, slots, pool)
        self.graphs = graphs
        memory = graphs.memory
        self._tables = TableMirror(pool, memory.tables)
        self._draft_sender = RoundSender(memory.draft_round)
        self._target_sender = RoundSender(memory.target_round)
        self._receiver = ResultReceiver(memory.result)
        self._coupled = engine.config.acceptance == "coupled"

    def draft(self, rows: np.ndarray, steps: int) -> DraftOutput:
        """Draft a block for each of slots `rows` [R] and choose its first `steps` tokens; valid until the next one."""
        drafts = self.graphs.drafts
        assert drafts is not None and steps == self.graphs.memory.sizes.steps, "graphs are captured for one length"
        starts = self.slots.context_len[rows]
        sampled = bool(self.slots.temperature[rows].any())
        self._tables.update()
        self._draft_sender.send(
            self.slots,
            rows,
            starts=starts,
            lengths=0,
            sampled=sampled,
            # In coupled mode the draft's noise is the target's own, which knows no generations.
            generations=0 if self._coupled else self.slots.generation[rows],
        )
        return drafts.replay(len(rows), int(starts.max()) + self.engine.graph_sizes.block_width, sampled=sampled)

    def verify(self, rows: np.ndarray, lengths: np.ndarray, draft: DraftOutput | None) -> RoundTokens:
        """Run the target over the anchor and the first `lengths` [R] drafted tokens of each of slots `rows` [R].

        `draft` is what `draft` gave for these rows: its tokens are where the graphs look for them.
        """
        starts = self.slots.context_len[rows]
        sampling = self._variant(rows)
        self._tables.update()
        self._target_sender.send(
            self.slots,
            rows,
            starts=starts,
            lengths=lengths,
            sampled=sampling is not Sampling.GREEDY,
            generations=self.slots.generation[rows],
        )
        context = int((starts + lengths).max()) + 1
        self.graphs.target.replay(len(rows) + int(lengths.sum()), context)
        self.graphs.verification.replay(len(rows), sampling)
        result = self._receiver.receive(len(rows))
        accepted = result[:, 0].copy()
        block = np.empty((len(rows), int(accepted.max()) + 1), dtype=np.int64)
        block[:, :-1] = result[:, 2 : block.shape[1] + 1]
        block[np.arange(len(rows)), accepted] = result[:, 1]
        return RoundTokens(accepted=accepted, block=block)

    def _variant(self, rows: np.ndarray) -> Sampling:
        warm = self.slots.temperature[rows] > 0
        if not warm.any():
            return Sampling.GREEDY
        truncated = (self.slots.top_k[rows] > 0) | (self.slots.top_p[rows] < 1)
        return Sampling.TRUNCATED if (warm & truncated).any() else Sampling.SAMPLED
