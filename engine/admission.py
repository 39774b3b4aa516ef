"""Lets requests in: slots, cache pages and the computation of their contexts."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

import numpy as np

from dspark.engine.eager import EagerRunner
from dspark.engine.errors import EngineError, RequestError
from dspark.engine.flights import Prefill
from dspark.engine.kv_pool import PagePool
from dspark.engine.ledger import Ledger
from dspark.engine.requests import NOT_YET, Completion, NotYet, Request
from dspark.engine.seeds import fold_seed, row_seed
from dspark.engine.slots import FREE, RUNNING, WAITING, SlotTable

if TYPE_CHECKING:
    from dspark.engine.engine import Engine

_EXHAUSTED = object()
_PREFILL_ROUNDS = 0.7  # that the prefill of a few prompts takes on a GPU, however few they are
_FIRST_LIFE = 360.0  # rounds, until a request has ended


def worthwhile_company(num_slots: int, rounds: float) -> int:
    """Prompts that a prefill is best launched for, where requests live for `rounds` on average in S slots.

    Waiting for k of them leaves (k - 1) / 2 slots idle, and there is a prefill every k * rounds / S rounds: of both
    together the least is lost at k = S * sqrt(2 * prefill / rounds).
    """
    wanted = round(num_slots * math.sqrt(2 * _PREFILL_ROUNDS / max(rounds, 1.0)))
    return min(max(wanted, 1), max(num_slots // 4, 1))


class Admission:
    """Pulls requests from a source as slots become free, and prefills them as far as pages reach."""

    def __init__(
        self, engine: Engine, requests: Iterable[Request | NotYet], *, slots: SlotTable, pool: PagePool, ledger: Ledger
    ) -> None:
        self.is_open = True  # more requests may come
        self._has_more = True  # as far as the source said last, one would come at once
        self._engine = engine
        self._source = iter(requests)
        self._slots = slots
        self._pool = pool
        self._ledger = ledger

    def missing_pages(self) -> tuple[np.ndarray, np.ndarray]:
        """Running slots [R], oldest request first, and the pages [R] each lacks for an anchor and a block.

        Wherever the rounds in flight leave its anchor: with one in flight these are two rounds' worth.
        """
        running = self._slots.wanting()
        return running, self._pool.missing(running, self._slots.most_start(running) + 1 + self._engine.gamma)

    def preempt_for_pages(self) -> bool:
        """Give every running request its pages; the youngest make room if none are left. Did any have to?

        Called before the round's block exists and with nothing in flight: dropping a request on evidence from drafted
        tokens would bias its text.
        """
        running, missing = self.missing_pages()
        kept, needed = len(running), int(missing.sum())
        while needed > self._pool.num_free:
            kept -= 1
            needed -= int(missing[kept])
            youngest = int(running[kept])
            assert self._slots.in_flight[youngest] == 0, "its tokens in flight would be lost"
            self._pool.release(youngest)
            self._slots.preempt(youngest)
            self._engine.stats.preemptions += 1
        self._pool.grow(running[:kept], missing[:kept])
        return kept < len(running)

    def fill_slots(self) -> None:
        """Pull requests from the source into free slots; what can never run completes as an error."""
        self._has_more = self.is_open
        for slot in sorted(self._slots.of_status(FREE).tolist()):
            while self._has_more:
                request = next(self._source, _EXHAUSTED)
                if request is _EXHAUSTED or request is NOT_YET:
                    self.is_open, self._has_more = request is NOT_YET, False
                    break
                if not isinstance(request, Request):
                    raise EngineError(
                        f"generate() got a {type(request).__name__}", "Give it an iterable of dspark.engine.Request."
                    )
                try:
                    self._engine.check(request)
                except RequestError as error:
                    self._ledger.done.append(Completion.failed(request.index, f"{error}. {error.remedy}"))
                    continue
                self._slots.arrive(slot, request, seed=self._seed(request))
                self._ledger.open(slot, request)
                break

    def prefill(self, runner: EagerRunner) -> list[Prefill]:
        """Launch the contexts of waiting requests, oldest first, as far as pages reach, in packed chunks."""
        slots, launched = self._slots, []
        admitted = self._admit()
        if not admitted.size:
            return []
        runner.place(admitted)
        for rows, starts, counts in self._chunks(admitted):
            fresh = (starts + counts == slots.context_len[rows]) & (slots.emitted[rows] == 0)
            result = runner.prefill(rows, starts, counts, fresh)
            self._engine.stats.prefill_tokens += int(counts.sum())
            if result is not None:
                first = rows[fresh]
                # The first token becomes the anchor, behind the context that was there already.
                slots.launch(first, 0)
                launched.append(Prefill(first, slots.serial[first], result))
        slots.set_status(admitted, RUNNING)
        return launched

    def _admit(self) -> np.ndarray:
        """Waiting slots [n] that there are pages for, given to them."""
        admitted: list[int] = []
        running = len(self._slots.of_status(RUNNING))
        waiting = self._slots.of_status(WAITING)
        if not waiting.size:
            return waiting
        # Company is worth waiting for, unless none will come or the device would have nothing else to do.
        if running and self._has_more and len(waiting) < self._company():
            return np.zeros(0, dtype=np.int64)
        for slot in waiting.tolist():
            one = np.asarray([slot])
            missing = self._pool.missing(one, self._slots.context_len[one] + 1 + self._engine.gamma)
            # A page is left for each of the others, which would otherwise preempt it in the very next round.
            others = running + len(admitted)
            if int(missing[0]) + others > self._pool.num_free:
                break
            self._pool.grow(one, missing)
            admitted.append(slot)
        return np.asarray(admitted, dtype=np.int64)

    def _company(self) -> int:
        if not self._engine.prefills_in_company:
            return 1
        stats = self._engine.stats
        rounds = stats.spec.rounds / stats.completed if stats.completed else _FIRST_LIFE
        return worthwhile_company(self._engine.concurrency, rounds)

    def _chunks(self, admitted: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
        """Cut the contexts of `admitted` slots into packed chunks: (slots [R], starts [R], counts [R])."""
        budget = self._engine.prefill_chunk_tokens
        chunk: list[tuple[int, int, int]] = []
        room = budget
        for slot in admitted.tolist():
            start, end = 0, int(self._slots.context_len[slot])
            while start < end:
                count = min(room, end - start)
                chunk.append((slot, start, count))
                start, room = start + count, room - count
                if room == 0:
                    yield _columns(chunk)
                    chunk, room = [], budget
        if chunk:
            yield _columns(chunk)

    def _seed(self, request: Request) -> int:
        seed = request.sampling.seed
        return row_seed(self._engine.config.seed, request.index) if seed is None else fold_seed(seed)


def _columns(chunk: list[tuple[int, int, int]]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    slots, starts, counts = np.asarray(chunk, dtype=np.int64).T
    return slots, starts, counts
