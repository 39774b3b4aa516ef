"""The device side of a round as graph replays."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch

from dspark.engine.eager import EagerRunner
from dspark.engine.graphs.decode_graphs import DecodeGraphs
from dspark.engine.graphs.staging import TableMirror, send_round
from dspark.engine.graphs.target_graphs import Sampling
from dspark.engine.kv_pool import PagePool
from dspark.engine.packing import Packing
from dspark.engine.proposals import DraftOutput
from dspark.engine.slots import SlotTable
from dspark.engine.transfer import Download

if TYPE_CHECKING:
    from dspark.engine.engine import Engine


class GraphRunner(EagerRunner):
    """Drafts, verifies and computes contexts by replaying graphs.

    Nothing waits for the device: where a request stands and how far it gets, graphs read and write on the device.
    """

    def __init__(self, engine: Engine, slots: SlotTable, pool: PagePool, *, graphs: DecodeGraphs) -> None:
        super().__init__(engine, slots, pool, state=graphs.memory.state)
        self.graphs = graphs
        self._tables = TableMirror(pool, graphs.memory.tables)
        self._coupled = engine.config.acceptance == "coupled"

    def _run_prompts(
        self, index: Packing, tokens: np.ndarray, *, rows: np.ndarray, logit_rows: np.ndarray
    ) -> torch.Tensor:
        self._tables.update()
        return self.graphs.prefill.run(index, tokens, slots=rows, logit_rows=logit_rows)

    def draft(self, rows: np.ndarray, steps: int) -> DraftOutput:
        """Draft a block for each of slots `rows` [R] and choose its first `steps` tokens; valid until the next one."""
        drafts = self.graphs.drafts
        assert drafts is not None and steps == self.graphs.memory.sizes.steps, "graphs are captured for one length"
        sampling = self._send(rows, steps)
        context = int(self.slots.most_start(rows).max()) + self.engine.gamma
        return drafts.replay(len(rows), context, sampled=sampling is not Sampling.GREEDY)

    def verify(self, rows: np.ndarray, lengths: np.ndarray, draft: DraftOutput | None) -> Download:
        """Run the target over anchors and drafted tokens of slots `rows` [R], and take each request as far as it gets.

        lengths [R]: drafted tokens to verify, at most. `draft` is what `draft` gave for these rows: its tokens are
        where the graphs look for them.
        """
        sampling = self._send(rows, lengths)
        context = int((self.slots.most_start(rows) + lengths).max()) + 1
        self.graphs.target.replay(len(rows) + int(lengths.sum()), context)
        self.graphs.verification.replay(len(rows), sampling)
        return Download(self.graphs.memory.result[: len(rows)])

    def _send(self, rows: np.ndarray, lengths: np.ndarray | int) -> Sampling:
        sampling = self._variant(rows)
        self._tables.update()
        send_round(
            self.graphs.memory.host_round,
            self.slots,
            rows,
            lengths=lengths,
            sampled=sampling is not Sampling.GREEDY,
            # In coupled mode the draft's noise is the target's own, which knows no generations.
            generations=0 if self._coupled else self.slots.generation[rows],
        )
        return sampling

    def _variant(self, rows: np.ndarray) -> Sampling:
        warm = self.slots.temperature[rows] > 0
        if not warm.any():
            return Sampling.GREEDY
        truncated = (self.slots.top_k[rows] > 0) | (self.slots.top_p[rows] < 1)
        return Sampling.TRUNCATED if (warm & truncated).any() else Sampling.SAMPLED
