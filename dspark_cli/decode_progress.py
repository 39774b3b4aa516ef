"""What a person sees while rows are decoded."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

from dspark.cli.progress import LiveReporter, Reporter

if TYPE_CHECKING:
    from dspark.engine.jobs.meter import Meter

_LINE_EVERY_S = 10.0


class DecodeReporter(Reporter):
    """A line a step and then one every `every_s` seconds, for a log file; nothing without `note`."""

    def __init__(self, note: Callable[[str], None] | None = None, *, every_s: float = _LINE_EVERY_S) -> None:
        super().__init__(note)
        self._every_s = every_s
        self._ended = threading.Event()
        self._ticker: threading.Thread | None = None

    def begin(self, meter: Meter) -> None:
        """Decoding starts. The engine tells of whole rows alone, so a thread looks after those that run."""
        summary = meter.summary
        before = f", {summary.resumed_rows:,} of them done before" if summary.resumed_rows else ""
        self.step(f"Decoding {summary.num_rows:,} rows{before}")
        if self._note is not None:
            self._ticker = threading.Thread(target=self._tick, args=(meter,), daemon=True)
            self._ticker.start()

    def row_done(self, meter: Meter) -> None:
        """One more row is done."""

    def close(self) -> None:
        self._ended.set()
        if self._ticker is not None:
            self._ticker.join()

    def _tick(self, meter: Meter) -> None:
        while not self._ended.wait(self._every_s):
            done, rows = meter.summary.whole_file.rows, meter.summary.num_rows
            self.tell(f"{done:,} of {rows:,} rows done, {speed(meter)}")


class LiveDecodeReporter(LiveReporter, DecodeReporter):
    """A bar that moves: steps of the preparation, then rows, tokens, tokens a second, acceptance length, time left."""

    def begin(self, meter: Meter) -> None:
        from rich.progress import (
            BarColumn,
            MofNCompleteColumn,
            ProgressColumn,
            SpinnerColumn,
            Task,
            TimeRemainingColumn,
        )
        from rich.text import Text

        class Running(ProgressColumn):
            """Looks anew whenever the bar is drawn: tokens come between rows."""

            def render(self, task: Task) -> Text:
                length = meter.summary.this_run.mean_acceptance_length
                return Text(speed(meter) + (f", {length:.2f} a round" if length else ""))

        self.last_step = ""
        columns = (
            SpinnerColumn(),
            BarColumn(bar_width=10),
            MofNCompleteColumn(),
            Running(),
            TimeRemainingColumn(compact=True),
        )
        summary = meter.summary
        self._show("Decoding", columns, done=summary.whole_file.rows, total=summary.num_rows)

    def row_done(self, meter: Meter) -> None:
        self._move(meter.summary.whole_file.rows)


def speed(meter: Meter) -> str:
    """Tokens of this run so far and tokens a second, those of running rows included."""
    tokens_per_s = meter.tokens_per_s
    return f"{meter.tokens:,} tokens, {tokens_per_s:,.{0 if tokens_per_s >= 100 else 1}f} tok/s"
