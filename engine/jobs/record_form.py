"""Whether a line of a partial result file holds a row as a job writes it, or what a hand or a disk made of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

FINISH_REASONS = ("stop", "length", "error")

# Far beyond any count of tokens, and sums of them still fit 64 bits.
_MOST = 2**48


def is_record(value: Any, *, traced: bool) -> bool:
    """Is `value`, of any JSON type, one whole row with its index?

    Args:
        traced: the run keeps each row's rounds, so that a row without them lacks something.
    """
    fields = _RECORD | {"trace": _holds(_TRACE)} if traced else _RECORD
    return _holds(fields)(value) and value["index"] == value["row"]["index"]


def _is_count(value: Any) -> bool:
    # Not `isinstance`: JSON's true is no number.
    return type(value) is int and 0 <= value < _MOST


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_text_or_null(value: Any) -> bool:
    return value is None or isinstance(value, str)


def _is_list_of(check: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, list) and all(map(check, value))


def _holds(
    fields: Mapping[str, Callable[[Any], bool]], optional: Mapping[str, Callable[[Any], bool]] | None = None
) -> Callable[[Any], bool]:
    """A check that a value is an object with `fields`, perhaps `optional` ones, and no others."""
    known = {**fields, **(optional or {})}

    def check(value: Any) -> bool:
        if not isinstance(value, dict) or not fields.keys() <= value.keys() <= known.keys():
            return False
        return all(known[name](each) for name, each in value.items())

    return check


_SPEC = {
    **dict.fromkeys(("rounds", "drafted", "verified", "accepted"), _is_count),
    "acceptance_histogram": _is_list_of(_is_count),
}
_USAGE = dict.fromkeys(("prompt_tokens", "completion_tokens"), _is_count)
_ROW: dict[str, Callable[[Any], bool]] = {
    "index": _is_count,
    "custom_id": _is_text_or_null,
    "text": _is_text_or_null,
    "finish_reason": lambda value: value in FINISH_REASONS,
    "usage": _holds(_USAGE),
    "spec": _holds(_SPEC),
    "error": _is_text_or_null,
}
_OF_SOME_ROWS = {"turns": _is_list_of(_is_text), "token_ids": _is_list_of(_is_count)}


def _is_row(value: Any) -> bool:
    # Only a row that failed has a reason, and the summary counts on its text.
    return _holds(_ROW, _OF_SOME_ROWS)(value) and (value["finish_reason"] == "error") == (value["error"] is not None)


_TRACE = {"dataset": _is_text, "rounds": _is_text}
_RECORD: dict[str, Callable[[Any], bool]] = {
    "index": _is_count,
    "observed": _is_count,
    "emitted": _is_count,
    "chat": lambda value: isinstance(value, bool),
    "model": _is_text_or_null,
    "row": _is_row,
}
