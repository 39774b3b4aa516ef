"""The sampling fields of a row: which are read, and which are refused by name because they would be ignored."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from dspark.engine.errors import RequestError

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


def read_settings(fields: Mapping[str, Any], *, is_body: bool) -> dict[str, Any]:
    """The `SamplingParams` that a row sets, by name.

    Raises:
        RequestError: a field has the wrong type, contradicts another, or asks for what decoding does not do.
    """
    refused = _REFUSED | _REFUSED_IN_BODY if is_body else _REFUSED
    for name, value in fields.items():
        if value is None:
            continue
        if name.startswith(_REFUSED_PREFIX) or (name in refused and not refused[name](value)):
            raise RequestError(f"`{name}` is not supported", "Leave it out.")
    settings = {name: fields[name] for name in SETTINGS if fields.get(name) is not None}
    limit = settings.pop("max_completion_tokens", None)
    if limit is not None and settings.setdefault("max_tokens", limit) != limit:
        raise RequestError("`max_tokens` and `max_completion_tokens` differ", "Keep one of them.")
    for name in ("max_tokens", "top_k", "seed"):
        if name in settings and (not isinstance(settings[name], int) or isinstance(settings[name], bool)):
            raise RequestError(f"`{name}` must be a whole number, not {json_type(settings[name])}", _NO_QUOTES)
    for name in ("temperature", "top_p"):
        if name in settings and (not isinstance(settings[name], int | float) or isinstance(settings[name], bool)):
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


def _stop_strings(value: object) -> tuple[str, ...]:
    strings = [value] if isinstance(value, str) else value
    if not isinstance(strings, list) or not all(isinstance(text, str) for text in strings):
        found = "a list of other things" if isinstance(strings, list) else json_type(value)
        raise RequestError(f"`stop` must be a string or a list of strings, not {found}", "Put texts in quotes.")
    return tuple(strings)
