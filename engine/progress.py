"""How long work tells how far it is."""

from __future__ import annotations

from collections.abc import Callable

# Told the name of a step, what of it is done, and the whole in the same unit; a whole of 0: nobody knows.
Progress = Callable[[str, int, int], None]


def silent(name: str, done: int, total: int) -> None:
    """Tells nobody."""
