"""How far a running job is, tokens of its unfinished rows included."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from typing import Protocol

from dspark.engine.jobs.summary import DecodeSummary
from dspark.engine.requests import Completion, NotYet, Request


class EngineTotals(Protocol):
    """Running totals of one `generate()`."""

    @property
    def emitted(self) -> int:
        """Tokens of all its requests, less the one of each that prefill gives."""

    @property
    def prefill_tokens(self) -> int:
        """Tokens that prefill ran, those of preempted requests again."""

    @property
    def preemptions(self) -> int:
        """Requests that had to give their memory back and begin anew."""


class MeteredEngine(Protocol):
    """What a meter needs of an engine."""

    @property
    def stats(self) -> EngineTotals:
        """Totals of the present `generate()`, or of the last one; a new object for each."""

    def generate(self, requests: Iterable[Request | NotYet]) -> Iterator[Completion]:
        """Completions in the order in which they finish."""


class Meter:
    """Reads an engine's progress while it decodes a job's rows; any thread may look at any time.

    Args:
        summary: of the job; rows count themselves in there as they finish.
        clock: seconds, from any start.
    """

    def __init__(
        self, engine: MeteredEngine, summary: DecodeSummary, *, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        self.summary = summary
        self._engine = engine
        self._clock = clock
        self._started_s = clock()
        self._counted = engine.stats
        self._emitted_before = 0

    def generate(self, requests: Iterable[Request | NotYet]) -> Iterator[Completion]:
        """The engine's own, with its totals added up over several calls."""
        yield from self._engine.generate(requests)
        # In this order a reader in between sees too few for an instant, and never the same tokens twice.
        self._counted = stats = self._engine.stats
        self._emitted_before += stats.emitted
        self.summary.prefill_tokens += stats.prefill_tokens
        self.summary.preemptions += stats.preemptions

    @property
    def elapsed_s(self) -> float:
        """Seconds since the job began to decode."""
        return self._clock() - self._started_s

    @property
    def tokens(self) -> int:
        """Completion tokens of this run; a row that still runs counts without the one that prefill gave it."""
        finished = self.summary.this_run
        stats = self._engine.stats
        emitted = self._emitted_before + (stats.emitted if stats is not self._counted else 0)
        return finished.completion_tokens + max(emitted - finished.spec.emitted, 0)

    @property
    def tokens_per_s(self) -> float:
        """Speed of this run so far; 0 before any time has passed."""
        elapsed_s = self.elapsed_s
        return self.tokens / elapsed_s if elapsed_s > 0 else 0.0

    @property
    def left_s(self) -> float | None:
        """Seconds to go if rows are as long as those of this run that are done; None before there are any.

        By tokens, since of rows that began together none is done for long and then all are at once.
        """
        finished, tokens_per_s = self.summary.this_run, self.tokens_per_s
        if not finished.rows or not tokens_per_s:
            return None
        rows = self.summary.num_rows - self.summary.resumed_rows
        return max(rows * finished.completion_tokens / finished.rows - self.tokens, 0.0) / tokens_per_s
