"""What a person sees while a job runs."""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress, TaskID

    from dspark.engine.jobs.summary import DecodeSummary


class Reporter:
    """Shows nothing; the base of those that do."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def step(self, name: str, done: int = 0, total: int = 0) -> None:
        """A step of the preparation; `total` 0 = unknown."""

    def begin(self, summary: DecodeSummary) -> None:
        """Decoding starts."""

    def row_done(self, summary: DecodeSummary) -> None:
        """One more row is done."""

    def close(self) -> None:
        """Nothing more to show."""


class PlainReporter(Reporter):
    """One line a step."""

    def __init__(self, note: Callable[[str], None]) -> None:
        self._note = note
        self._name = ""

    def step(self, name: str, done: int = 0, total: int = 0) -> None:
        if name != self._name:
            self._name = name
            self._note(name)

    def begin(self, summary: DecodeSummary) -> None:
        resumed = f", {summary.resumed} of them done before" if summary.resumed else ""
        self.step(f"Decoding {summary.num_rows} rows{resumed}")


class LiveReporter(Reporter):
    """A bar that moves: steps of the preparation, then rows, tokens a second, mean acceptance length, time left."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._progress: Progress | None = None
        self._task: TaskID | None = None
        self._name = ""

    def step(self, name: str, done: int = 0, total: int = 0) -> None:
        if self._progress is None or name != self._name:
            from rich.progress import BarColumn, SpinnerColumn, TaskProgressColumn, TextColumn

            self._name = name
            columns = [SpinnerColumn(), TextColumn("{task.description}", markup=False)]
            if total:
                columns += [BarColumn(), TaskProgressColumn()]
            self._show(*columns)
            self._task = self._bar.add_task(name, total=total or None)
        self._bar.update(self._running, completed=done, total=total or None)

    def begin(self, summary: DecodeSummary) -> None:
        from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn

        self._name = ""
        self._show(
            TextColumn("Decoding"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[speed]}", markup=False),
            TextColumn("{task.fields[acceptance]}", markup=False),
            TimeRemainingColumn(compact=True),
        )
        self._task = self._bar.add_task(
            "Decoding", total=summary.num_rows, completed=summary.done, speed="", acceptance=""
        )

    def row_done(self, summary: DecodeSummary) -> None:
        speed, length = summary.tokens_per_s, summary.mean_acceptance_length
        self._bar.update(
            self._running,
            completed=summary.done,
            speed=f"{speed:,.0f} tok/s" if speed else "",
            acceptance=f"{length:.2f} tokens a round" if length else "",
        )

    def close(self) -> None:
        if self._progress is not None:
            self._progress.stop()
            self._progress = None

    @property
    def _bar(self) -> Progress:
        assert self._progress is not None
        return self._progress

    @property
    def _running(self) -> TaskID:
        assert self._task is not None
        return self._task

    def _show(self, *columns: object) -> None:
        """Replace the bar by one with these columns."""
        from rich.progress import Progress

        self.close()
        self._progress = Progress(*columns, console=self._console, transient=True, refresh_per_second=5)  # type: ignore[arg-type]
        self._progress.start()
