"""One engine for many callers: rows of all of them are decoded together, and a row that breaks it is found."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from dspark.engine.jobs.round_records import RoundRecorder, pack
from dspark.engine.observation import RoundObserver
from dspark.engine.requests import NOT_YET, Completion, NotYet, Request
from dspark.engine.wording import first_line

DIED = "the workers that decoded it died, the last of them with no other row beside it"


class ServedEngine(Protocol):
    """What a server needs of an engine."""

    observer: RoundObserver | None

    @property
    def gamma(self) -> int:
        """Drafted tokens of a block."""

    def generate(self, requests: Iterable[Request | NotYet]) -> Iterator[Completion]:
        """Completions in the order in which they finish; pulls requests as it has room for them."""


@dataclass(frozen=True, slots=True)
class Answer:
    """A row that is done; `rounds` are its rounds, as `round_records.pack` gives them, if they were asked for."""

    completion: Completion
    rounds: str | None = None


@dataclass(slots=True)
class _Job:
    request: Request
    record_rounds: bool
    alone: bool
    done: threading.Event = field(default_factory=threading.Event)
    answer: Answer | None = None


class RowServer:
    """Decodes on a thread of its own, so that blocks of rows that come one by one share the engine's batch.

    An exception of the engine ends none but the row that raises it: all that ran are decoded once more, one by one.

    Args:
        may_try_alone: asked before a row is decoded with none beside it; if not, the row has ended a worker.
        came_through: told of such a row when it is done.
        check_device: raises if the device is broken for good, which ends the process by `give_up`.
    """

    def __init__(
        self,
        engine: ServedEngine,
        *,
        may_try_alone: Callable[[int], bool] = lambda index: True,
        came_through: Callable[[int], None] = lambda index: None,
        check_device: Callable[[], None] = lambda: None,
        give_up: Callable[[], None] = lambda: None,
    ) -> None:
        self._engine = engine
        self._may_try_alone = may_try_alone
        self._came_through = came_through
        self._check_device = check_device
        self._give_up = give_up
        self._recorder = RoundRecorder(engine.gamma)
        self._arrived = threading.Condition()
        self._together: deque[_Job] = deque()
        self._apart: deque[_Job] = deque()
        threading.Thread(target=self._serve, daemon=True).start()

    def answers(self, requests: Sequence[Request], *, record_rounds: bool = False, alone: bool = False) -> list[Answer]:
        """Decode some rows, in any thread; returns when the last of them is done, in their order.

        alone: one by one, with no row beside.
        """
        jobs = [_Job(request, record_rounds, alone) for request in requests]
        with self._arrived:
            (self._apart if alone else self._together).extend(jobs)
            self._arrived.notify()
        answers = []
        for job in jobs:
            job.done.wait()
            assert job.answer is not None
            answers.append(job.answer)
        return answers

    def _serve(self) -> None:
        while True:
            first = self._next()
            if first.alone and not self._may_try_alone(first.request.index):
                self._finish(first, Completion.failed(first.request.index, DIED))
                continue
            running: dict[int, _Job] = {}
            self._engine.observer = self._recorder if first.record_rounds else None
            try:
                for completion in self._engine.generate(self._requests(first, running)):
                    if first.alone:
                        self._came_through(completion.index)
                    self._finish(running[completion.index], completion)
                    del running[completion.index]
            except Exception as error:
                self._broke(running, error)

    def _next(self) -> _Job:
        with self._arrived:
            self._arrived.wait_for(lambda: self._together or self._apart)
            return (self._apart or self._together).popleft()

    def _requests(self, first: _Job, running: dict[int, _Job]) -> Iterator[Request | NotYet]:
        """`first`, and whatever else comes to be decoded together while any of them runs."""
        running[first.request.index] = first
        yield first.request
        # Rows that are to be alone wait for the others to end, so no more of those begin.
        while running and not first.alone and not self._apart:
            with self._arrived:
                job = self._together.popleft() if self._together else None
            if job is None:
                yield NOT_YET
                continue
            running[job.request.index] = job
            yield job.request

    def _finish(self, job: _Job, completion: Completion) -> None:
        rounds = pack(self._recorder.take(completion.index)) if job.record_rounds else None
        job.answer = Answer(completion, rounds)
        job.done.set()

    def _broke(self, running: dict[int, _Job], error: Exception) -> None:
        try:
            self._check_device()
        except Exception:
            # Whatever is decoded here from now on would fail. Rows are decoded again by the worker that takes over.
            self._give_up()
        for index, job in running.items():
            self._recorder.take(index)
            if job.alone:
                self._finish(
                    job, Completion.failed(index, f"decoding failed: {type(error).__name__}: {first_line(error)}")
                )
            else:
                job.alone = True
                with self._arrived:
                    self._apart.append(job)
