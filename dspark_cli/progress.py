"""What a person sees while a command runs: the part that all commands share."""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import Self


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
        if self._note is not None:
            self._note(line)

    def close(self) -> None:
        """Nothing more to show."""
