"""The device side of a round as graph replays."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch

from dspark.engine.draft_noise import DraftNoise
from dspark.engine.eager import EagerRunner
from dspark.engine.flights import LaunchedRound
from dspark.engine.graphs.decode_graphs import DecodeGraphs
from dspark.engine.graphs.staging import TableMirror, send_round
from dspark.engine.kv_pool import PagePool
from dspark.engine.orders import RoundOrder
from dspark.engine.packing import Packing
from dspark.engine.proposals import DraftOutput
from dspark.engine.sampling import Sampling
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
        self._noise = DraftNoise.of(engine.config.acceptance)
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
        assert drafts is not None, "drafting needs a drafter"
        self._send(rows, order)
        context = int(self.slots.most_start(rows).max()) + self.engine.graph_sizes.block_width
        sampled = Sampling.of(self.slots, rows) is not Sampling.GREEDY
        return drafts.replay(len(rows), context, sampled=sampled, steps=order.steps)

    def verify(self, rows: np.ndarray, order: RoundOrder, draft: DraftOutput | None) -> LaunchedRound:
        """Run the target over anchors and drafted tokens of slots `rows` [R], and take each request as far as it gets.

        `draft` is what `draft` gave for these rows: its tokens are where the graphs look for them.
        """
        self._mark()
        self._send(rows, order)
        context = int((self.slots.most_start(rows) + order.lengths).max()) + 1
        bucket = self.graphs.target.replay(order.most_tokens, context)
        self._mark()
        self.graphs.verification.replay(len(rows), Sampling.of(self.slots, rows), steps=order.steps)
        self._mark()
        self._target_logits = self.graphs.memory.logits
        # The device waited for a capture, if there was one.
        undisturbed = self.graphs.num_captured == self._captured_before
        result = Download(self.graphs.memory.result[: len(rows)])
        return LaunchedRound(result, bucket, marks=self._marks if undisturbed else None)

    def signals(self, rows: np.ndarray, lengths: np.ndarray, draft: DraftOutput) -> dict[str, np.ndarray]:
        """What `round_signals` reads off the round just replayed.

        Graphs of greedy blocks keep no logits that tell how sure the drafter was.
        """
        found = super().signals(rows, lengths, draft)
        if draft.certain and self.graphs.drafts is not None:
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
            sampled=Sampling.of(self.slots, rows) is not Sampling.GREEDY,
            generations=self._noise.generations(self.slots.generation[rows]),
        )
