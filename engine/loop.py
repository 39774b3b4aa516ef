"""The decode loop: continuous batching of draft-and-verify rounds."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

import numpy as np

from dspark.engine.admission import Admission
from dspark.engine.eager import EagerRunner
from dspark.engine.flights import Flight
from dspark.engine.graphs.runner import GraphRunner
from dspark.engine.kv_pool import PagePool
from dspark.engine.ledger import Ledger
from dspark.engine.proposals import DraftOutput
from dspark.engine.requests import Completion, Request
from dspark.engine.scheduler.policies import ScheduleView
from dspark.engine.slots import FREE, RUNNING, SlotTable
from dspark.engine.transfer import Download

if TYPE_CHECKING:
    from dspark.engine.engine import Engine


class DecodeLoop:
    """Runs requests to completion, `concurrency` at a time.

    One iteration: reserve pages for the running requests, let waiting ones in and launch their prefill, launch one
    round over all that run (draft, schedule, verify, commit), and take in the results that are due. Up to `depth`
    rounds stay in flight meanwhile: the device works on one while the host prepares the next, knowing only bounds of
    where it will find the requests.
    """

    def __init__(self, engine: Engine, requests: Iterable[Request], *, depth: int = 0) -> None:
        self.engine = engine
        self.depth = depth
        num_slots = engine.concurrency
        self.slots = SlotTable(num_slots, max_context=engine.max_context, gamma=engine.gamma)
        self.pool = PagePool(
            engine.num_pages,
            engine.page_size,
            num_slots=num_slots,
            max_pages_per_slot=engine.pages_per_request,
        )
        self._ledger = Ledger(engine, self.slots, self.pool)
        self._admission = Admission(engine, requests, slots=self.slots, pool=self.pool, ledger=self._ledger)
        self._runner = (
            EagerRunner(engine, self.slots, self.pool)
            if engine.graphs is None
            else GraphRunner(engine, self.slots, self.pool, graphs=engine.graphs)
        )
        self._flights: deque[Flight] = deque()

    def run(self) -> Iterator[Completion]:
        """Completions in the order in which requests finish."""
        while True:
            preempted = self._reserve_pages()
            self._admission.fill_slots()
            if not preempted:
                self._flights.extend(self._admission.prefill(self._runner))
            if self.depth == 0:
                self._land(0)
            launched = self._launch_round()
            self._land(self.depth if launched else 0)
            while self._ledger.done:
                yield self._ledger.done.popleft()
            if not self._admission.is_open and not (self.slots.status != FREE).any():
                return

    def _reserve_pages(self) -> bool:
        """Reserve pages for the anchor and a block of every running request; was one preempted for that?"""
        running, missing = self._admission.missing_pages()
        if int(missing.sum()) <= self.pool.num_free:
            self.pool.grow(running, missing)
            return False
        # Only what is known to be committed may decide who has to go.
        self._land(0)
        return self._admission.preempt_for_pages()

    def _land(self, most: int) -> None:
        """Take results in, oldest first, until at most `most` rounds are in flight."""
        rounds = sum(flight.is_round for flight in self._flights)
        while self._flights and (rounds > most or most == 0):
            flight = self._flights.popleft()
            rounds -= flight.is_round
            self._ledger.take_in(flight, self._runner)

    def _launch_round(self) -> bool:
        """Draft, schedule, verify and commit for all requests that may still need it; are there any?"""
        running = self.slots.of_status(RUNNING)
        rows = running[self.slots.most_left(running) > 0]
        if not rows.size:
            return False
        draft = self._draft(rows)
        lengths = self._schedule(rows, draft)
        result = self._runner.verify(rows, lengths, draft)
        most_ahead = lengths + 1
        self._flights.append(
            Flight(
                rows,
                self.slots.serial[rows],
                result,
                most_ahead=most_ahead,
                steps=0 if draft is None else draft.tokens.shape[1],
                draft=draft,
            )
        )
        self.slots.launch(rows, most_ahead)
        return True

    def _draft(self, rows: np.ndarray) -> DraftOutput | None:
        """Draft one block a request, unless the policy drafts nothing or nobody could use a draft."""
        policy = self.engine.policy
        if self.engine.drafter is None or not policy.drafts or int(self.slots.most_left(rows).max()) <= 1:
            return None
        self.slots.generation[rows] += 1
        return self._runner.draft(rows, policy.steps(self.engine.gamma))

    def _schedule(self, rows: np.ndarray, draft: DraftOutput | None) -> np.ndarray:
        """How many drafted tokens of each request the target verifies, at most: int64 [R]."""
        if draft is None:
            return np.zeros(len(rows), dtype=np.int64)
        steps = draft.tokens.shape[1]
        caps = np.minimum(steps, self.slots.most_left(rows) - 1)
        if not self.engine.policy.reads_confidence:
            # Nothing of the block is needed on the host, so the device need not be waited for.
            nothing = np.zeros((len(rows), 0), dtype=np.float32)
            return self._capped(ScheduleView(caps=caps, confidence_logits=nothing, temperatures=np.zeros(0)))
        confidence = Download(draft.confidence_logits).wait()  # [R, steps]
        view = ScheduleView(
            caps=caps,
            confidence_logits=confidence,
            previous_confidence_logits=self.slots.previous_confidence[rows, :steps],
            previous_valid=self.slots.has_previous[rows],
            temperatures=self.engine.confidence_temperatures[:steps],
        )
        lengths = self._capped(view)
        self.slots.previous_confidence[rows, :steps] = confidence
        self.slots.has_previous[rows] = True
        return lengths

    def _capped(self, view: ScheduleView) -> np.ndarray:
        # Whatever a policy wants: past its cap a request has neither pages nor tokens left.
        return np.clip(self.engine.policy.lengths(view), 0, view.caps)
