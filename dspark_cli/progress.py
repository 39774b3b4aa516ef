"""What a person sees while a command runs: the part that all commands share."""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from rich.console import Console, Group
    from rich.live import Live
    from rich.progress import Progress, ProgressColumn, TaskID


LINE_EVERY_S = 10.0


class Reporter:
    """Tells the steps of a command, a line each, and how far the present one is whenever `every_s` seconds were silent.

    Without `note` it tells nothing and only remembers how far it came.
    """

    def __init__(self, note: Callable[[str], None] | None = None, *, every_s: float = LINE_EVERY_S) -> None:
        self._note = note
        self._every_s = every_s
        self._ended = threading.Event()
        self._ticker: threading.Thread | None = None
        self._told_s = self._step_s = time.monotonic()
        self._count = (0, 0)
        self.last_step = ""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def step(self, name: str, done: int = 0, total: int = 0) -> None:
        """A step begins or goes on; `total` 0 = unknown."""
        self._count = (done, total)
        if name != self.last_step:
            self._step_s = time.monotonic()
            self.tell(name)
        self.last_step = name
        if self._note is not None and self._ticker is None:
            # What runs may be one long call, of torch or of an import.
            self._ticker = threading.Thread(target=self._tick, daemon=True)
            self._ticker.start()

    def tell(self, line: str) -> None:
        """One more line, if anybody listens."""
        if self._note is not None:
            self._told_s = time.monotonic()
            self._note(line)

    def standing(self) -> str:
        """How far the present step is."""
        done, total = self._count
        if total:
            return f"{self.last_step}: {done:,} of {total:,}"
        return f"{self.last_step}: {time.monotonic() - self._step_s:.0f} s so far"

    def close(self) -> None:
        """Nothing more to show."""
        self._ended.set()
        if self._ticker is not None:
            self._ticker.join()

    def _tick(self) -> None:
        silent_s = 0.0
        while not self._ended.wait(self._every_s - silent_s):
            silent_s = time.monotonic() - self._told_s
            if silent_s >= self._every_s:
                self.tell(self.standing())
                silent_s = 0.0


class LiveReporter(Reporter):
    """A bar that moves over the present step."""

    def __init__(self, console: Console) -> None:
        super().__init__()
        self._console = console
        self._bar: Progress | None = None
        self._task: TaskID | None = None

    def step(self, name: str, done: int = 0, total: int = 0) -> None:
        if self._bar is None or name != self.last_step:
            from rich.progress import BarColumn, SpinnerColumn, TaskProgressColumn, TextColumn

            columns: list[ProgressColumn] = [SpinnerColumn(), TextColumn("{task.description}", markup=False)]
            if total:
                columns += [BarColumn(), TaskProgressColumn()]
            self._show(name, columns, done=done, total=total or None)
        self._move(done, total=total or None)
        self.last_step = name

    def close(self) -> None:
        if self._bar is not None:
            self._bar.stop()
            self._bar = None

    def _show(self, name: str, columns: Iterable[ProgressColumn], *, done: int, total: int | None) -> None:
        """Replace the bar by one with these columns."""
        from rich.progress import Progress

        self.close()
        self._bar = Progress(*columns, console=self._console, transient=True, refresh_per_second=5)
        self._task = self._bar.add_task(name, total=total, completed=done)
        self._bar.start()

    def _move(self, done: int, *, total: int | None = None) -> None:
        assert self._bar is not None and self._task is not None
        self._bar.update(self._task, completed=done, total=total)


class RedrawnReporter(Reporter, ABC):
    """Draws what `_render` gives, again and again, from the first step on."""

    def __init__(self, console: Console) -> None:
        super().__init__()
        self._console = console
        self._live: Live | None = None

    def step(self, name: str, done: int = 0, total: int = 0) -> None:
        super().step(name, done, total)
        if self._live is None:
            from rich.live import Live

            self._live = Live(console=self._console, transient=True, refresh_per_second=4, get_renderable=self._render)
            self._live.start()

    def close(self) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None

    @abstractmethod
    def _render(self) -> Group:
        """What there is to see at present."""


def time_left(left_s: float | None) -> str:
    """The end of a line that says how far something is; nothing where nobody can tell."""
    if left_s is None:
        return ""
    minutes, rest = divmod(round(max(left_s, 0.0)), 60)
    return f", {minutes}:{rest:02} left"
