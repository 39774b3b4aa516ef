"""Reasons to refuse a checkpoint, gathered so that all of them can be told at once."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

from dspark.engine.errors import CheckpointError

_Value = TypeVar("_Value")
_Fallback = TypeVar("_Fallback")


class Refusals:
    """Goes on behind a refusal, where loading would end at the first one."""

    def __init__(self) -> None:
        self.reasons: list[CheckpointError] = []

    def gather(self, read: Callable[[], _Value], fallback: _Fallback) -> _Value | _Fallback:
        """What `read` gives; if it refuses, its reasons are kept and `fallback` takes the value's place."""
        try:
            return read()
        except CheckpointError as error:
            self.extend(error.reasons)
            return fallback

    def check(self, refuse: Callable[[], object]) -> bool:
        """Run a check; False if it refused."""
        known = len(self.reasons)
        self.gather(refuse, None)
        return len(self.reasons) == known

    def add(self, message: str, remedy: str) -> None:
        """Keep one more reason."""
        self.extend([CheckpointError(message, remedy)])

    def extend(self, reasons: Iterable[CheckpointError]) -> None:
        """Keep reasons that are not there yet: two readers of one key find the same fault."""
        for reason in reasons:
            if str(reason) not in map(str, self.reasons):
                self.reasons.append(reason)

    def raise_first(self) -> None:
        """Raise the first reason, with the others in its `others`; nothing if there is none."""
        if self.reasons:
            first, *others = self.reasons
            first.others = tuple(others)
            raise first
