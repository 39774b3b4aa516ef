"""How values and other libraries' errors are put into sentences of ours."""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterable

_MOST_CHARACTERS = 40


def shortened(text: str, most: int = _MOST_CHARACTERS) -> str:
    """`text`, cut where it would drown the sentence around it."""
    return text if len(text) <= most else f"{text[: most - 3]}..."


def shown(value: object) -> str:
    """A value as Python spells it, shortened."""
    return shortened(repr(value))


def name_as_text(name: str | os.PathLike[str]) -> str:
    """A path, or a part of one, as text that any page, figure or JSON can hold: other bytes and controls as escapes."""
    text = os.fsencode(name).decode("utf-8", "backslashreplace")
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)


def first_line(error: BaseException) -> str:
    """What an error says first, without a full stop; its kind if it says nothing."""
    lines = str(error).strip().splitlines()
    return lines[0].rstrip(".") if lines else type(error).__name__


def one_line(text: str, most: int) -> str:
    """The start of a text on one line: white space is single blanks, and nothing moves a terminal's cursor."""
    # Far more than is shown need not be looked at.
    words = "".join(c if c.isprintable() else " " for c in text[: most * 4]).split()
    return shortened(" ".join(words), most)


def closest(name: str, known: Iterable[str], *, cutoff: float = 0.6) -> str | None:
    """The known name that `name` is most likely a misspelling of, if any is closer than `cutoff` (1 = the same)."""
    close = difflib.get_close_matches(name, list(known), n=1, cutoff=cutoff)
    return close[0] if close else None
