"""How far a self-test is: what it does, as which of how many phases, and how much of that is done."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Protocol, TypeVar

Item = TypeVar("Item")


class Step(Protocol):
    """Is told what comes next, and how much of it is done; `total` 0 = unknown."""

    def __call__(self, name: str, done: int = 0, total: int = 0) -> None: ...


class Counted(Protocol):
    """Passes items on, and tells how many of `total` have gone."""

    def __call__(self, items: Iterable[Item], total: int, /) -> Iterable[Item]: ...


def uncounted(items: Iterable[Item], total: int, /) -> Iterable[Item]:
    """Passes items on, and tells nothing."""
    return items


class Phases:
    """Numbers the phases of a test that has `total` of them."""

    def __init__(self, step: Step, total: int) -> None:
        self._step, self._total = step, total
        self._number, self._name = 0, ""

    def begin(self, name: str) -> None:
        """The next phase begins."""
        self._number += 1
        self._name = f"{name} ({self._number} of {self._total})"
        self._step(self._name)

    def counted(self, items: Iterable[Item], total: int, /) -> Iterator[Item]:
        """`items`, as the work of the present phase."""
        for done, item in enumerate(items):
            self._step(self._name, done, total)
            yield item
