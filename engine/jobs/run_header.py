"""What a run's rows depend on, and in what two runs differ."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dspark.engine.jobs import strict_json
from dspark.engine.wording import shortened


def differences(found: Mapping[str, Any], expected: Mapping[str, Any]) -> list[str]:
    """Each setting that differs, by its dotted name and both values: `found` of then, `expected` of now."""
    # Through JSON, as what was found has been: tuples become lists.
    now = _flat(strict_json.loads(strict_json.dumps(dict(expected)).decode()))
    then = _flat(found)
    return [
        f"{name} ({_shown(then.get(name))} then, {_shown(now.get(name))} now)"
        for name in sorted(now.keys() | then.keys())
        if then.get(name) != now.get(name)
    ]


def _flat(value: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, entry in value.items():
        if isinstance(entry, Mapping):
            flat |= _flat(entry, f"{prefix}{name}.")
        else:
            flat[prefix + name] = entry
    return flat


def _shown(value: object) -> str:
    return shortened(strict_json.dumps(value).decode())
