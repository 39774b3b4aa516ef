"""How far a self-test is: what it does, as which of how many phases, and how much of that is done."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Protocol, TypeVar

from dspark.engine.progress import Progress

Item = TypeVar("Item")


class Counted(Protocol):
    """Passes items on, and tells how many of `total` have gone."""

    def __call__(self, items: Iterable[Item], total: int, /) -> Iterable[Item]: ...


def uncounted(items: Iterable[Item], total: int, /) -> Iterable[Item]:
    """Passes items on, and tells nothing."""
    return items


class Phases:
    """Numbers the phases of a test that has `total` of them."""

    def __init__(self, step: Progress, total: int) -> None:
        self._step, self._total = step, total
        self._number, self._name = 0, ""

    def begin(self, name: str) -> None:
        """The next phase begins."""
        self._number += 1
        self._name = f"{name} ({self._number} of {self._total})"
        self._step(self._name, 0, 0)

    def counted(self, items: Iterable[Item], total: int, /) -> Iterator[Item]:
        """`items`, as the work of the present phase."""
        for done, item in enumerate(items):
            self._step(self._name, done, total)
            yield item
