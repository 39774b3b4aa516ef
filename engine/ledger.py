"""Books what comes back from the device: text, counts, and the requests that are done."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

import numpy as np

from dspark.engine.counts import CountTable
from dspark.engine.eager import EagerRunner
from dspark.engine.errors import EngineError
from dspark.engine.flights import Flight, Prefill
from dspark.engine.kv_pool import PagePool
from dspark.engine.observation import observed_round
from dspark.engine.requests import Completion, Request
from dspark.engine.round_meter import LandedRound
from dspark.engine.slots import RUNNING, SlotTable
from dspark.engine.stopping import StopText
from dspark.kernels import ResultField

if TYPE_CHECKING:
    from dspark.engine.engine import Engine


class Ledger:
    """Takes results in, oldest first, and makes completions of what they finish."""

    def __init__(self, engine: Engine, slots: SlotTable, pool: PagePool) -> None:
        self.done: deque[Completion] = deque()
        self._engine = engine
        self._slots = slots
        self._pool = pool
        self._counts = CountTable(engine.concurrency, gamma=engine.gamma)
        self._stop_text: dict[int, StopText] = {}

    def open(self, slot: int, request: Request) -> None:
        """A new request begins in `slot`."""
        self._counts.clear(slot)
        if request.sampling.stop:
            self._stop_text[slot] = self._engine.stop_text(request.sampling.stop)

    def begin(self, prefill: Prefill) -> None:
        """Give new requests the token behind their prompts, their first anchor.

        Raises:
            EngineError: the target's logits are not finite.
        """
        # None has left: whatever finishes it comes later.
        result, rows = prefill.result.wait(), prefill.rows
        self._check(result)
        self._slots.land(rows, 0)
        self._append(rows, self._slots.context_len[rows], result)
        self._retire(rows, result)

    def take_in(self, flight: Flight, runner: EagerRunner) -> LandedRound:
        """Append what a round gave its requests to their texts, count it, and let finished requests leave.

        A request may have ended since the round was launched: what it brings for that one is dropped.

        Raises:
            EngineError: the target's logits are not finite.
        """
        result = flight.result.wait()
        slots, stats, launched = self._slots, self._engine.stats, len(flight.rows)
        rows, most_ahead, drafted = flight.rows, flight.most_ahead, flight.order.drafted
        batch_tokens = int(result[:, ResultField.LENGTH].sum()) + launched
        wasted_tokens = 0
        if rows is not slots.of_status(RUNNING):
            there = (slots.serial[rows] == flight.serials) & (slots.status[rows] == RUNNING)
            wasted_tokens = int((result[~there, ResultField.LENGTH] + 1).sum())
            stats.wasted_tokens += wasted_tokens
            rows, most_ahead, drafted, result = rows[there], most_ahead[there], drafted[there], result[there]
        self._check(result)
        slots.land(rows, most_ahead)
        tokens_left = slots.limit[rows] - slots.emitted[rows]
        # A request that takes one more token has no use for its draft, whoever else makes the block worth drafting.
        drafted = np.where(tokens_left > 1, drafted, 0)
        self._append(rows, slots.context_len[rows] + 1, result)
        lengths, accepted, emitted = (
            result[:, field] for field in (ResultField.LENGTH, ResultField.ACCEPTED, ResultField.EMITTED)
        )
        slots.context_len[rows] += emitted
        passed = int(accepted.sum())
        # A stop inside the accepted tokens ends the round there; what lies behind it was never observed.
        stopped_early = emitted <= accepted
        accepted = np.where(stopped_early, emitted, accepted)
        observed = np.where(stopped_early, accepted, np.minimum(accepted + 1, lengths))
        stats.rounds += 1
        stats.emitted += int(emitted.sum())
        self._counts.add_round(
            rows, drafted=drafted, verified=lengths, observed=observed, accepted=accepted, emitted=emitted
        )
        if self._engine.observer is not None:
            draft = flight.draft
            self._engine.observer(
                observed_round(
                    slots,
                    rows,
                    draft,
                    drafted=drafted,
                    verified=lengths,
                    observed=observed,
                    accepted=accepted,
                    emitted=emitted,
                    signals={} if draft is None else runner.signals(rows, lengths, draft),
                )
            )
        self._retire(rows, result)
        return LandedRound(
            requests=launched,
            still_there=len(rows),
            batch_tokens=batch_tokens,
            accepted=passed,
            emitted=int(emitted.sum()),
            wasted_tokens=wasted_tokens,
        )

    def _append(self, rows: np.ndarray, first: np.ndarray, result: np.ndarray) -> None:
        """Write the tokens of result [R, fields + G] at text positions `first` [R], up to a stop string."""
        slots = self._slots
        accepted = result[:, ResultField.ACCEPTED]
        block = np.zeros((len(rows), 1 + result.shape[1] - len(ResultField)), dtype=np.int64)
        block[:, :-1] = result[:, len(ResultField) :]
        block[np.arange(len(rows)), accepted] = result[:, ResultField.NEXT_TOKEN]
        emitted = result[:, ResultField.EMITTED]
        for i, slot in enumerate(rows.tolist() if self._stop_text else ()):
            watcher = self._stop_text.get(slot)
            cut = watcher.feed(block[i, : emitted[i]].tolist()) if watcher is not None else None
            if cut is not None:
                emitted[i], result[i, ResultField.STOPPED] = cut, 1
        written = np.arange(block.shape[1]) < emitted[:, None]
        owner, offset = np.nonzero(written)
        slots.tokens[rows[owner], first[owner] + offset] = block[written]
        slots.emitted[rows] += emitted

    def _retire(self, rows: np.ndarray, result: np.ndarray) -> None:
        """Complete the requests that stopped or reached their limit."""
        slots = self._slots
        stopped = result[:, ResultField.STOPPED] > 0
        finished = stopped | (slots.emitted[rows] >= slots.limit[rows])
        for slot, by_stop in zip(rows[finished].tolist(), stopped[finished].tolist(), strict=True):
            request = slots.requests[slot]
            assert request is not None
            watcher = self._stop_text.pop(slot, None)
            by_text = watcher is not None and watcher.finish()
            counts = self._counts.of(slot)
            self._engine.stats.spec += counts
            self._engine.stats.completed += 1
            self.done.append(
                Completion(
                    index=request.index,
                    token_ids=slots.completion(slot).tolist(),
                    text=watcher.text if watcher is not None and by_text else None,
                    finish_reason="stop" if by_stop or by_text else "length",
                    error=None,
                    counts=counts,
                )
            )
            self._pool.release(slot)
            slots.leave(slot)

    def _check(self, result: np.ndarray) -> None:
        if result[:, ResultField.FINITE].all():
            return
        narrow = self._engine.dtype == "float16"
        raise EngineError(
            f"the target's logits are not finite in {self._engine.dtype}",
            "Use --dtype bfloat16 or float32." if narrow else "Check the target's weights and config.json.",
        )
