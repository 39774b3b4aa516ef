"""Option values that are several numbers, with commas between them."""

from __future__ import annotations

import re

from dspark.engine.errors import UsageError


def numbers(text: str, flag: str, *, example: str) -> tuple[float, ...]:
    """The numbers in the value of `flag`.

    Raises:
        UsageError: it is something else.
    """
    try:
        return tuple(float(part) for part in text.split(","))
    except ValueError:
        raise UsageError(f"{flag} is {text!r}, not numbers", f"Write, say, {flag} {example}.") from None


def whole_numbers(text: str, flag: str, *, example: str, least: int | None = None) -> tuple[int, ...]:
    """The whole numbers in the value of `flag`, none of them below `least`.

    Raises:
        UsageError: it is something else.
    """
    parts = [part.strip() for part in text.split(",")]
    # Python's int() would also take underscores and the digits of other scripts.
    if all(re.fullmatch(r"-?[0-9]{1,18}", part) for part in parts):
        values = tuple(map(int, parts))
        if least is None or min(values) >= least:
            return values
    wanted = "whole numbers" if least is None else f"whole numbers of at least {least}"
    raise UsageError(f"{flag} is {text!r}, not {wanted}", f"Write, say, {flag} {example}.")
