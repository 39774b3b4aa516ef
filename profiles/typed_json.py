"""JSON documents into dataclasses: a value of another type is refused by its place in the document."""

from __future__ import annotations

import json
import math
import types
from collections import Counter
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from functools import cache
from typing import Any, NoReturn, Union, get_args, get_origin, get_type_hints

_MOST_CHARACTERS = 40
# Whole numbers from there on are no float.
_MOST = 2**1023
_WANTED = {int: "a whole number", float: "a number", str: "a text", bool: "true or false"}


class RepeatedKey(ValueError):
    """An object that has one key twice, and says two things by it."""


def parse(text: str) -> Any:
    """One strict JSON document.

    Raises:
        RepeatedKey: an object has a key twice.
        ValueError: it is not one, or nests too deep, or holds NaN, Infinity or a number too large to keep.
    """
    try:
        return json.loads(
            text, parse_constant=_refuse_constant, parse_float=_finite, object_pairs_hook=_object_of_different_keys
        )
    except RecursionError:
        raise ValueError("nested too deep") from None


def typed(kind: Any, value: Any, place: str) -> Any:
    """`value` as `kind`.

    A dataclass is an object with its fields and no others. A float may be written as a whole number.

    Args:
        kind: int, float, str, bool, several of them, or None beside anything; a dataclass of such kinds,
            tuple[kind, ...], Mapping[str, kind], or Any.
        place: of the value in its document, for the refusal.

    Raises:
        ValueError: it is something else, or the dataclass refuses what it is given.
    """
    if kind is Any:
        return value
    if get_origin(kind) in (Union, types.UnionType):
        if value is None and type(None) in get_args(kind):
            return None
        kinds = [each for each in get_args(kind) if each is not type(None)]
        return typed(kinds[0], value, place) if len(kinds) == 1 else _scalar(kinds, value, place)
    if is_dataclass(kind):
        return _dataclass(kind, value, place)
    if get_origin(kind) is tuple:
        if not isinstance(value, list | tuple):
            refuse(place, value, "a list")
        return tuple(typed(get_args(kind)[0], each, f"{place}[{index}]") for index, each in enumerate(value))
    if get_origin(kind) is Mapping:
        if not isinstance(value, dict):
            refuse(place, value, "an object")
        return {name: typed(get_args(kind)[1], each, f"{place}.{name}") for name, each in value.items()}
    return _scalar([kind], value, place)


def member(document: Any, name: str, kind: Any, place: str = "") -> Any:
    """The value called `name` of an object at `place`, as `typed`.

    Raises:
        ValueError: the object is none, or lacks it, or it is of another type.
    """
    if not isinstance(document, dict):
        refuse(place, document, "an object")
    path = f"{place}.{name}" if place else name
    if name not in document:
        raise ValueError(f"`{path}` is missing")
    return typed(kind, document[name], path)


def refuse(place: str, value: Any, wanted: str) -> NoReturn:
    """Raise ValueError that says what is at `place`, and what is wanted there."""
    found = json.dumps(value, ensure_ascii=False)
    if len(found) > _MOST_CHARACTERS:
        found = f"{found[: _MOST_CHARACTERS - 3]}..."
    raise ValueError(f"`{place}` is {found}, not {wanted}")


def _dataclass(kind: Any, value: Any, place: str) -> Any:
    hints = _hints(kind)
    values = {field.name: member(value, field.name, hints[field.name], place) for field in fields(kind)}
    for name in value.keys() - values.keys():
        raise ValueError(f"`{place}.{name}` is not known" if place else f"`{name}` is not known")
    try:
        return kind(**values)
    except ValueError as error:
        raise ValueError(f"`{place}`: {error}" if place else str(error)) from None


def _scalar(kinds: list[Any], value: Any, place: str) -> Any:
    # Not `isinstance`: JSON's true and false are no numbers.
    if type(value) in kinds and (type(value) is not float or math.isfinite(value)):
        return value
    if float in kinds and type(value) is int and abs(value) < _MOST:
        return float(value)
    refuse(place, value, " or ".join(_WANTED[kind] for kind in kinds))


@cache
def _hints(kind: Any) -> dict[str, Any]:
    return get_type_hints(kind)


def _object_of_different_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) < len(pairs):
        name = next(name for name, count in Counter(name for name, _ in pairs).items() if count > 1)
        raise RepeatedKey(f"`{name[:_MOST_CHARACTERS]}` stands twice in one object")
    return members


def _finite(digits: str) -> float:
    number = float(digits)
    if math.isinf(number):
        raise ValueError(f"{digits} is too large")
    return number


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")
