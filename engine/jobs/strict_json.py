"""JSON as the standard has it: no NaN, no Infinity under any spelling, and nothing that is not UTF-8."""

from __future__ import annotations

import json
import math
from collections import Counter
from typing import Any, NoReturn

from dspark.engine.wording import shortened

# Text lines in these characters' sense end in many readers (`str.splitlines`); as escapes they end in none.
_LINE_ENDS = {"\u0085": "\\u0085", "\u2028": "\\u2028", "\u2029": "\\u2029"}


def loads(text: str, *, repeated: list[str] | None = None) -> Any:
    """Parse one JSON document.

    Args:
        repeated: takes the keys that an object has twice, of which only the last is kept.

    Raises:
        ValueError: it is not one, or nests too deep, or holds NaN, Infinity or a number too large to keep.
    """

    def watched(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        fields = dict(pairs)
        if repeated is not None and len(fields) < len(pairs):
            repeated.extend(name for name, count in Counter(name for name, _ in pairs).items() if count > 1)
        return fields

    pairs_hook = None if repeated is None else watched
    try:
        return json.loads(
            text, parse_constant=_refuse, parse_float=_finite, parse_int=_whole, object_pairs_hook=pairs_hook
        )
    except RecursionError:
        raise ValueError("nested too deep") from None


def dumps(value: Any, *, indent: int | None = None) -> bytes:
    """`value` as UTF-8 JSON; without `indent` it is one line by anybody's idea of a line."""
    try:
        text = json.dumps(value, ensure_ascii=False, allow_nan=False, indent=indent)
        for character, escape in _LINE_ENDS.items():
            if character in text:
                text = text.replace(character, escape)
        return text.encode("utf-8")
    except UnicodeEncodeError:
        # An unpaired surrogate has no UTF-8; JSON can only spell it as an escape.
        return json.dumps(value, ensure_ascii=True, allow_nan=False, indent=indent).encode("ascii")


def _finite(digits: str) -> float:
    number = float(digits)
    if math.isinf(number):
        raise ValueError(f"the number {shortened(digits)} is too large")
    return number


def _whole(digits: str) -> int:
    try:
        return int(digits)
    except ValueError:
        raise ValueError(f"the number {shortened(digits)} is too large") from None


def _refuse(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")
