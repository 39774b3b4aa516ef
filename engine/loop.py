"""The decode loop: continuous batching of draft-and-verify rounds."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from dspark.engine.admission import Admission
from dspark.engine.eager import EagerRunner
from dspark.engine.flights import Flight, Prefill
from dspark.engine.graphs.runner import GraphRunner
from dspark.engine.kv_pool import PagePool
from dspark.engine.ledger import Ledger
from dspark.engine.requests import Completion, NotYet, Request
from dspark.engine.round_meter import RoundMeter
from dspark.engine.scheduling import make_scheduler
from dspark.engine.slots import FREE, SlotTable

if TYPE_CHECKING:
    from dspark.engine.engine import Engine


class DecodeLoop:
    """Runs requests to completion, `concurrency` at a time.

    One iteration: reserve pages for the running requests, let waiting ones in and launch their prefill, launch one
    round over all that run, and take in the results that are due. Up to `depth` rounds stay in flight meanwhile: the
    device works on one while the host prepares the next, knowing only bounds of where it will find the requests.
    """

    def __init__(self, engine: Engine, requests: Iterable[Request | NotYet], *, depth: int = 0) -> None:
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
        self._scheduler = make_scheduler(engine, self.slots)
        every = engine.times_every_round or engine.graphs is None
        self._meter = RoundMeter(engine.planner, engine.round_listener, every=every)
        self._runner = (
            EagerRunner(engine, self.slots, self.pool)
            if engine.graphs is None
            else GraphRunner(engine, self.slots, self.pool, graphs=engine.graphs)
        )
        self._flights: deque[Flight | Prefill] = deque()
        self._launched_rounds = 0
        self._last_launch_was_a_round = False

    def run(self) -> Iterator[Completion]:
        """Completions in the order in which requests finish."""
        while True:
            preempted = self._reserve_pages()
            self._admission.fill_slots()
            if not preempted:
                self._launch_prefill()
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
        total = int(missing.sum())
        if total <= self.pool.num_free:
            if total:
                self.pool.grow(running, missing)
            return False
        # Only what is known to be committed may decide who has to go.
        self._land(0)
        return self._admission.preempt_for_pages()

    def _launch_prefill(self) -> None:
        for prefill in self._admission.prefill(self._runner):
            self._flights.append(prefill)
            self._last_launch_was_a_round = False

    def _launch_round(self) -> bool:
        """Draft, schedule, verify and commit for all requests that may still need it; are there any?"""
        slots, runner = self.slots, self._runner
        rows = slots.wanting()
        if not rows.size:
            return False
        runner.begin_round(timed=self._meter.times(self._launched_rounds))
        order, draft = self._scheduler.order(rows), None
        if order.steps:
            slots.generation[rows] += 1
            draft = runner.draft(rows, order)
            order = self._scheduler.revise(rows, order, draft)
        launched = runner.verify(rows, order, draft)
        flight = Flight(
            rows,
            slots.serial[rows],
            launched.result,
            order=order,
            bucket=launched.bucket,
            draft=draft,
            marks=launched.marks,
            follows_a_round=self._last_launch_was_a_round,
        )
        self._flights.append(flight)
        slots.launch(rows, flight.most_ahead)
        self._launched_rounds += 1
        self._last_launch_was_a_round = True
        self._scheduler.look_ahead(rows)
        return True

    def _land(self, most: int) -> None:
        """Take results in, oldest first, until at most `most` rounds are in flight."""
        rounds = sum(isinstance(flight, Flight) for flight in self._flights)
        while self._flights and (rounds > most or most == 0):
            flight = self._flights.popleft()
            if isinstance(flight, Prefill):
                self._ledger.begin(flight)
                continue
            rounds -= 1
            self._meter.landed(flight, self._ledger.take_in(flight, self._runner))
