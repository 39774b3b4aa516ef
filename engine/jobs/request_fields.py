"""The fields of a row: which are read, which are refused by name because they would be ignored, which are not used."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from dspark.engine.errors import RequestError
from dspark.engine.value_kinds import is_number, is_whole
from dspark.engine.wording import closest, shortened, shown

KINDS = ("prompt", "prompt_token_ids", "messages", "turns", "conversations", "body")
SETTINGS = ("max_tokens", "max_completion_tokens", "temperature", "top_p", "top_k", "seed", "stop", "ignore_eos")

_NO_QUOTES = "Write such a number, without quotes."

# Field -> the values that ask for nothing. `null` always does.
_REFUSED: dict[str, Callable[[Any], bool]] = {
    "n": lambda value: value == 1,
    "best_of": lambda value: value == 1,
    "logprobs": lambda value: value is False,
    "top_logprobs": lambda value: value == 0,
    "frequency_penalty": lambda value: value == 0,
    "presence_penalty": lambda value: value == 0,
    "repetition_penalty": lambda value: value == 1,
    "logit_bias": lambda value: value == {},
    "response_format": lambda value: value == {"type": "text"},
    "tools": lambda value: value == [],
    "tool_choice": lambda value: value in ("none", "auto"),
    "functions": lambda value: value == [],
    "function_call": lambda value: value in ("none", "auto"),
    "min_p": lambda value: value == 0,
    "min_tokens": lambda value: value == 0,
    "prompt_logprobs": lambda value: value is False,
    "structured_outputs": lambda value: False,
}
_REFUSED_PREFIX = "guided_"
# These are common names of data columns too, so they count only where nothing but a request can stand.
_REFUSED_IN_BODY: dict[str, Callable[[Any], bool]] = {
    "stream": lambda value: value is False,
    "echo": lambda value: value is False,
    "suffix": lambda value: value == "",
    "modalities": lambda value: value == ["text"],
    "audio": lambda value: False,
    "prediction": lambda value: False,
}
# What a request may carry for its sender or a server; no text depends on it.
_WITHOUT_EFFECT = (
    *("model", "user", "metadata", "store", "service_tier", "stream_options"),
    *("safety_identifier", "prompt_cache_key", "prompt_cache_retention"),
)

# Names of a row that no text depends on.
_NAMES = ("custom_id", "dataset")
_ROW_FIELDS = frozenset({*_NAMES, *KINDS, *SETTINGS, *_REFUSED})
_BATCH_FIELDS = frozenset({*_NAMES, "method", "url", *KINDS, *SETTINGS})
_BODY_FIELDS = frozenset({"prompt", "messages", *SETTINGS, *_REFUSED, *_REFUSED_IN_BODY, *_WITHOUT_EFFECT})
# Similarity from which a name is taken for a misspelling: `max_token`, but not `conversation_id`.
_MISSPELT = 0.82


def unused_fields(fields: Mapping[str, Any]) -> list[str]:
    """Names in a row that decoding looks at under no circumstances; `null` asks for nothing and is left out.

    In the `body` of a batch line such fields are refused instead: nothing but a request can stand there.
    """
    if all(fields.get(kind) is None for kind in KINDS):
        return []  # nothing of it is used, and its error says so
    known = _ROW_FIELDS if fields.get("body") is None else _BATCH_FIELDS
    return [
        name
        for name, value in fields.items()
        if value is not None and name not in known and not name.startswith(_REFUSED_PREFIX)
    ]


def misspelt_setting(name: str) -> str | None:
    """The field of a row that `name` is probably meant to be."""
    return closest(_plain(name), (*_NAMES, *SETTINGS), cutoff=_MISSPELT)


def misspelt_kind(names: Iterable[str]) -> tuple[str, str] | None:
    """The first of `names` that is probably meant to hold what is asked, and what it should read."""
    for name in names:
        kind = closest(_plain(name), KINDS, cutoff=_MISSPELT)
        if kind is not None:
            return name, kind
    return None


def read_settings(fields: Mapping[str, Any], *, is_body: bool) -> dict[str, Any]:
    """The `SamplingParams` that a row sets, by name.

    Raises:
        RequestError: a field has the wrong type, contradicts another, or asks for what decoding does not do; in a body
            also a field that is not known.
    """
    refused = _REFUSED | _REFUSED_IN_BODY if is_body else _REFUSED
    for name, value in fields.items():
        if value is None:
            continue
        if name.startswith(_REFUSED_PREFIX) or (name in refused and not refused[name](value)):
            raise RequestError(f"`{name}` is not supported", "Leave it out.")
        if is_body and name not in _BODY_FIELDS:
            meant = misspelt_setting(name)
            remedy = f"Perhaps `{meant}` is meant." if meant else "Leave it out."
            raise RequestError(f"`{shortened(name)}` is not a field that dspark reads", remedy)
    settings = {name: fields[name] for name in SETTINGS if fields.get(name) is not None}
    limit = settings.pop("max_completion_tokens", None)
    if limit is not None and settings.setdefault("max_tokens", limit) != limit:
        raise RequestError("`max_tokens` and `max_completion_tokens` differ", "Keep one of them.")
    for name in ("max_tokens", "top_k", "seed"):
        if name in settings and not is_whole(settings[name]):
            value = settings[name]
            found = shown(value) if isinstance(value, float) else json_type(value)
            raise RequestError(f"`{name}` must be a whole number, not {found}", _NO_QUOTES)
    for name in ("temperature", "top_p"):
        if name in settings and not is_number(settings[name]):
            raise RequestError(f"`{name}` must be a number, not {json_type(settings[name])}", _NO_QUOTES)
    if not isinstance(settings.get("ignore_eos", False), bool):
        raise RequestError(
            f"`ignore_eos` must be a boolean, not {json_type(settings['ignore_eos'])}", "Write true or false."
        )
    if "stop" in settings:
        settings["stop"] = _stop_strings(settings["stop"])
    return settings


def json_type(value: object) -> str:
    """What a JSON value is, in words."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "a boolean"
    for kind, words in ((str, "a string"), (int, "a whole number"), (float, "a number"), (list, "a list")):
        if isinstance(value, kind):
            return words
    return "an object"


def _plain(name: str) -> str:
    return name.lower().replace("-", "_")


def _stop_strings(value: object) -> tuple[str, ...]:
    strings = [value] if isinstance(value, str) else value
    if not isinstance(strings, list) or not all(isinstance(text, str) for text in strings):
        found = "a list of other things" if isinstance(strings, list) else json_type(value)
        raise RequestError(f"`stop` must be a string or a list of strings, not {found}", "Put texts in quotes.")
    return tuple(strings)
