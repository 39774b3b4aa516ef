"""What a person sees while rows are decoded."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from dspark.cli.progress import LINE_EVERY_S, LiveReporter, Reporter, time_left

if TYPE_CHECKING:
    from dspark.engine.jobs.meter import Meter


class DecodeReporter(Reporter):
    """The same while rows are decoded: the line now and then tells rows, tokens, speed and the time left."""

    def __init__(self, note: Callable[[str], None] | None = None, *, every_s: float = LINE_EVERY_S) -> None:
        super().__init__(note, every_s=every_s)
        self._meter: Meter | None = None

    def begin(self, meter: Meter) -> None:
        """Decoding starts. The engine tells of whole rows alone; `meter` knows those that run, too."""
        self._meter = meter
        summary = meter.summary
        before = f", {summary.resumed_rows:,} of them done before" if summary.resumed_rows else ""
        self.step(f"Decoding {summary.num_rows:,} rows{before}")

    def row_done(self, meter: Meter) -> None:
        """One more row is done."""

    def standing(self) -> str:
        if self._meter is None:
            return super().standing()
        summary = self._meter.summary
        rows = f"{summary.whole_file.rows:,} of {summary.num_rows:,} rows done"
        return f"{rows}, {speed(self._meter)}{time_left(self._meter.left_s)}"


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
