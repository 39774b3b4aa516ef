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
from dspark.engine.orders import RoundOrder
from dspark.engine.packing import Packing
from dspark.engine.proposals import DraftOutput
from dspark.engine.slots import SlotTable
from dspark.engine.transfer import Download, upload_into

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
        self._captured_before = graphs.num_captured
        self._sent: RoundOrder | None = None

    def _run_prompts(
        self, index: Packing, tokens: np.ndarray, *, rows: np.ndarray, logit_rows: np.ndarray
    ) -> torch.Tensor:
        self._tables.update()
        return self.graphs.prefill.run(index, tokens, slots=rows, logit_rows=logit_rows)

    def begin_round(self, *, timed: bool) -> None:
        """A round starts here."""
        super().begin_round(timed=timed)
        self._captured_before = self.graphs.num_captured
        self._sent = None

    def draft(self, rows: np.ndarray, order: RoundOrder) -> DraftOutput:
        """Draft the block that is ordered for slots `rows` [R]; valid until the next one."""
        if order.proposals is not None:
            memory = self.graphs.memory
            assert memory.drafts is not None, "graphs of rounds that draft"
            tokens = memory.drafts[: len(rows)]
            upload_into(tokens, order.proposals.tokens)
            confidence = torch.from_numpy(order.proposals.confidence_logits)
            return DraftOutput(tokens, logits=None, confidence_logits=confidence)
        drafts = self.graphs.drafts
        assert drafts is not None and order.steps == self.graphs.memory.sizes.steps, (
            "graphs are captured for one length"
        )
        self._send(rows, order)
        context = int(self.slots.most_start(rows).max()) + self.engine.graph_sizes.block_width
        return drafts.replay(len(rows), context, sampled=self._variant(rows) is not Sampling.GREEDY)

    def verify(self, rows: np.ndarray, order: RoundOrder, draft: DraftOutput | None) -> Download:
        """Run the target over anchors and drafted tokens of slots `rows` [R], and take each request as far as it gets.

        `draft` is what `draft` gave for these rows: its tokens are where the graphs look for them.
        """
        self._mark()
        self._send(rows, order)
        context = int((self.slots.most_start(rows) + order.lengths).max()) + 1
        self.bucket = self.graphs.target.replay(order.most_tokens, context)
        self._mark()
        self.graphs.verification.replay(len(rows), self._variant(rows))
        self._mark()
        if self.graphs.num_captured != self._captured_before:
            # The device waited for a capture.
            self.marks = None
        self._target_logits = self.graphs.memory.logits
        return Download(self.graphs.memory.result[: len(rows)])

    def signals(self, rows: np.ndarray, lengths: np.ndarray, draft: DraftOutput) -> dict[str, np.ndarray]:
        """What `round_signals` reads off the round just replayed.

        Graphs of greedy blocks keep no logits that tell how sure the drafter was.
        """
        found = super().signals(rows, lengths, draft)
        if draft.logits is None and self.graphs.drafts is not None:
            return {name: values for name, values in found.items() if not name.startswith("draft_")}
        return found

    def _send(self, rows: np.ndarray, order: RoundOrder) -> None:
        """Tell the device of the round, unless it knows."""
        if self._sent is order:
            return
        self._sent = order
        self._tables.update()
        send_round(
            self.graphs.memory.host_round,
            self.slots,
            rows,
            order=order,
            sampled=self._variant(rows) is not Sampling.GREEDY,
            # In coupled mode the draft's noise is the target's own, which knows no generations.
            generations=0 if self._coupled else self.slots.generation[rows],
        )

    def _variant(self, rows: np.ndarray) -> Sampling:
        warm = self.slots.temperature[rows] > 0
        if not warm.any():
            return Sampling.GREEDY
        truncated = (self.slots.top_k[rows] > 0) | (self.slots.top_p[rows] < 1)
        return Sampling.TRUNCATED if (warm & truncated).any() else Sampling.SAMPLED
