"""How values and other libraries' errors are put into sentences of ours."""

from __future__ import annotations

_MOST_CHARACTERS = 40


def shortened(text: str) -> str:
    """`text`, cut where it would drown the sentence around it."""
    return text if len(text) <= _MOST_CHARACTERS else f"{text[: _MOST_CHARACTERS - 3]}..."


def first_line(error: BaseException) -> str:
    """What an error says first, without a full stop; its kind if it says nothing."""
    lines = str(error).strip().splitlines()
    return lines[0].rstrip(".") if lines else type(error).__name__
