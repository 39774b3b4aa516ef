"""What a run's rows depend on, and in what two runs differ."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dspark.engine.jobs import strict_json
from dspark.engine.wording import shortened

# Settings that an option names; the last parts of their dotted names are the options' own names.
_ENGINE = ("target", "drafter", "device", "dtype", "policy", "acceptance", "seed", "draft_top_k")
_ROWS = ("max_tokens", "temperature", "top_k", "top_p", "stop", "ignore_eos")
_OUTPUT = ("all_turns", "token_ids", "traces", "output_format")
_SHAPE = ("layers", "block_size", "markov_head", "markov_rank", "feature_layers", "mask_token_id")
_BATCHES = ("steps", "minutes", "rows", "row_tokens", "anchors")
_TRAINING = ("optimizer", "learning_rate", "weight_decay", "evaluate_every_s")
_OPTIONS = frozenset((*_ENGINE, *_ROWS, *_OUTPUT, *_SHAPE, *_BATCHES, *_TRAINING))
_FINGERPRINTS = ("engine.target", "engine.drafter")
_NAMES = "names."
_INPUT = {"input.rows": "the number of rows in --input", "input.sha256": "the content of --input"}


def differences(found: Mapping[str, Any], expected: Mapping[str, Any]) -> list[str]:
    """Each setting that differs, by its option and both values: `found` of then, `expected` of now.

    What no option names goes by its dotted name.
    """
    # Through JSON, as what was found has been: tuples become lists.
    now = _flat(strict_json.loads(strict_json.dumps(dict(expected)).decode()))
    then = _flat(found)
    return [
        f"{_named(name)} ({_shown(then, name)} then, {_shown(now, name)} now)"
        for name in sorted(now.keys() | then.keys())
        # Weights are compared, not what they are called.
        if then.get(name) != now.get(name) and not name.startswith(_NAMES)
    ]


def _flat(value: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, entry in value.items():
        if isinstance(entry, Mapping):
            flat |= _flat(entry, f"{prefix}{name}.")
        else:
            flat[prefix + name] = entry
    return flat


def _named(name: str) -> str:
    if name in _INPUT:
        return _INPUT[name]
    # An option carries no unit.
    key = name.rpartition(".")[2]
    return f"--{key.removesuffix('_s').replace('_', '-')}" if key in _OPTIONS else name


def _shown(settings: Mapping[str, Any], name: str) -> str:
    """The value of a setting; a model's fingerprint with the model's name, if that was recorded."""
    value = shortened(strict_json.dumps(settings.get(name)).decode())
    model = settings.get(_NAMES + name.removeprefix("engine.")) if name in _FINGERPRINTS else None
    # No drafter is called what it is.
    return value if model in (None, settings.get(name)) else f"{shortened(str(model))} {value}"
