"""Values of a checkpoint's JSON files, read by type and range; anything else is refused by name."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any, NoReturn

from dspark.engine.errors import CheckpointError
from dspark.engine.value_kinds import is_whole
from dspark.engine.wording import shortened

CORRECT = "Download the checkpoint's config.json again, or correct it."
MOST_SIZE = 2**24
INT64 = 2**63
_MOST_CHARACTERS = 60
_MISSING = object()


def whole_number(
    config: Mapping[str, Any], key: str, low: int = 1, high: int = MOST_SIZE, *, source: str = "config.json"
) -> int:
    """A key that must be there."""
    value = config.get(key, _MISSING)
    if is_whole(value) and low <= value <= high:
        return int(value)
    refuse(config, key, f"a whole number from {low} to {high}", source=source)


def optional_whole_number(
    config: Mapping[str, Any], key: str, default: int | None, low: int = 1, high: int = MOST_SIZE
) -> int | None:
    """`default` if the key is missing; None if it is null."""
    if key not in config:
        return default
    return None if config[key] is None else whole_number(config, key, low, high)


def number(config: Mapping[str, Any], key: str, default: float | None = None, *, low: float = 0.0) -> float:
    """A finite number of at least `low`; the key must be there if it has no default."""
    value = config.get(key, _MISSING if default is None else default)
    most = INT64 if is_whole(value) else math.inf
    if (is_whole(value) or isinstance(value, float)) and low <= value < most:
        return float(value)
    refuse(config, key, f"a number of at least {low:g}")


def flag(config: Mapping[str, Any], key: str, *, source: str = "config.json") -> bool:
    """True or false; a key that is missing or null is false."""
    value = config.get(key)
    if value is None or isinstance(value, bool):
        return bool(value)
    refuse(config, key, "true or false", source=source)


def strings(config: Mapping[str, Any], key: str, *, source: str = "config.json") -> list[str]:
    """A list of strings; a key that is missing or null is an empty one."""
    value = config.get(key)
    if value is None:
        return []
    if isinstance(value, list) and all(isinstance(item, str) for item in value):
        return value
    refuse(config, key, "a list of strings", source=source)


def token_ids(config: Mapping[str, Any], key: str, default: int | None = None, *, source: str) -> tuple[int, ...]:
    """One token or a list; a key that is null is none."""
    value = config.get(key, default)
    ids = [] if value is None else value if isinstance(value, list) else [value]
    if all(is_whole(item) and -INT64 <= item < INT64 for item in ids):
        return tuple(ids)
    refuse(config, key, "a token id or a list of them", source=source)


def refuse(config: Mapping[str, Any], key: str, wanted: str, *, source: str = "config.json") -> NoReturn:
    """Raise CheckpointError that says what `key` is and what it must be."""
    found = "is missing"
    if key in config:
        found = f"is {shortened(json.dumps(config[key]), _MOST_CHARACTERS)}"
    raise CheckpointError(f"`{key}` in {source} {found}; it must be {wanted}", CORRECT)
