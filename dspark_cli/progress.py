"""What a person sees while a command runs: the part that all commands share."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from rich.console import Console, Group
    from rich.live import Live
    from rich.progress import Progress, ProgressColumn, TaskID


class Reporter:
    """Tells the steps of a command, a line each; without `note` it tells nothing. Remembers how far it came."""

    def __init__(self, note: Callable[[str], None] | None = None) -> None:
        self._note = note
        self.last_step = ""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def step(self, name: str, done: int = 0, total: int = 0) -> None:
        """A step begins or goes on; `total` 0 = unknown."""
        if name != self.last_step:
            self.tell(name)
        self.last_step = name

    def tell(self, line: str) -> None:
        """One more line, if anybody listens."""
        if self._note is not None:
            self._note(line)

    def close(self) -> None:
        """Nothing more to show."""


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
