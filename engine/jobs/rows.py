"""Input rows: one JSON object a line, of any of the kinds that datasets and batch files use."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from dspark.engine.errors import RequestError
from dspark.engine.jobs import strict_json
from dspark.engine.jobs.input_file import Line
from dspark.engine.jobs.request_fields import KINDS, SETTINGS, json_type, misspelt_kind, read_settings
from dspark.engine.wording import shortened, shown

Message = dict[str, str]

_BATCH_URLS = {"/v1/chat/completions": "messages", "/v1/completions": "prompt"}
_SHAREGPT_ROLES = {
    "human": "user",
    "user": "user",
    "gpt": "assistant",
    "chatgpt": "assistant",
    "assistant": "assistant",
    "model": "assistant",
    "system": "system",
}


@dataclass(frozen=True, slots=True)
class Row:
    """One row: what it asks (exactly one of `prompt`, `token_ids`, `messages`), or why it cannot be asked (`error`).

    `model` is what a batch line calls the model; whatever it says, the target answers.
    """

    index: int
    line: int
    custom_id: str | None = None
    dataset: str | None = None
    prompt: str | None = None
    token_ids: list[int] | None = None
    messages: list[Message] | None = None
    later_turns: tuple[str, ...] = ()
    settings: dict[str, Any] = field(default_factory=dict)
    model: str | None = None
    error: str | None = None


@dataclass(frozen=True, slots=True)
class _Question:
    prompt: str | None = None
    token_ids: list[int] | None = None
    messages: list[Message] | None = None
    later_turns: tuple[str, ...] = ()


def read_rows(lines: Iterable[Line], *, all_turns: bool) -> Iterator[Row]:
    """One row a line; what is wrong with a row is in its `error`.

    A `prompt` is raw text that the model continues; `messages`, `turns` and `conversations` go through the chat
    template. Of `turns` the first is asked, or all in sequence with `all_turns`. Of `conversations` the recorded last
    answer is dropped and given anew.
    """
    for line in lines:
        yield parse_row(line, all_turns=all_turns)


def parse_row(line: Line, *, all_turns: bool) -> Row:
    """The row of an input line; one that cannot be decoded says why in `error`, and raises nothing."""
    custom_id: str | None = None
    repeated: list[str] = []
    try:
        fields = _object(line.content, repeated)
        custom_id = _custom_id(fields)
        if repeated:
            raise RequestError(f"`{shortened(repeated[0])}` stands twice in one object", "Keep one of them.")
        dataset = fields.get("dataset")
        question, settings = _read(fields, all_turns=all_turns)
    except RequestError as error:
        return Row(line.index, line.number, custom_id, error=reason(error))
    return Row(
        line.index,
        line.number,
        custom_id,
        # A common column, so anything that is no name in it is just not used.
        dataset=dataset if isinstance(dataset, str) and dataset.isprintable() else None,
        prompt=question.prompt,
        token_ids=question.token_ids,
        messages=question.messages,
        later_turns=question.later_turns,
        settings=settings,
        model=_model(fields),
    )


def reason(error: RequestError) -> str:
    """What a row's `error` says after the line number."""
    return f"{error}. {error.remedy}" if error.remedy else str(error)


def _object(content: bytes, repeated: list[str]) -> dict[str, Any]:
    """What a line holds; `repeated` takes the keys that stand twice in one object, at any depth."""
    try:
        fields = strict_json.loads(content.decode("utf-8"), repeated=repeated)
    except UnicodeDecodeError as error:
        raise RequestError(f"not UTF-8 (byte {error.start + 1})", "Convert the file to UTF-8.") from None
    except ValueError as error:
        raise RequestError(f"not JSON ({error})", "Write one JSON object a line.") from None
    if not isinstance(fields, dict):
        raise RequestError(f"expected a JSON object, got {json_type(fields)}", "Write one JSON object a line.")
    return fields


def _custom_id(fields: Mapping[str, Any]) -> str | None:
    custom_id = fields.get("custom_id")
    if custom_id is not None and not isinstance(custom_id, str):
        raise RequestError(f"`custom_id` must be a string, not {json_type(custom_id)}", "Put it in quotes.")
    return custom_id


def _model(fields: Mapping[str, Any]) -> str | None:
    body = fields.get("body")
    model = body.get("model") if isinstance(body, dict) else None
    return model if isinstance(model, str) else None


def _read(fields: Mapping[str, Any], *, all_turns: bool) -> tuple[_Question, dict[str, Any]]:
    kinds = [kind for kind in KINDS if fields.get(kind) is not None]
    if not kinds:
        misspelt = misspelt_kind(name for name in fields if name not in KINDS)
        if misspelt:
            raise RequestError(f"no prompt, but `{shortened(misspelt[0])}`", f"Perhaps `{misspelt[1]}` is meant.")
        raise RequestError("no prompt", f"Give one of {', '.join(KINDS)}.")
    if len(kinds) > 1:
        raise RequestError(f"ambiguous: has {' and '.join(f'`{kind}`' for kind in kinds)}", "Keep one of them.")
    kind = kinds[0]
    value = fields[kind]
    if kind == "body":
        return _batch(fields)
    settings = read_settings(fields, is_body=False)
    if kind == "prompt":
        return _Question(prompt=_string(value, "prompt")), settings
    if kind == "prompt_token_ids":
        return _Question(token_ids=_token_ids(value, kind)), settings
    if kind == "messages":
        return _Question(messages=_messages(value)), settings
    if kind == "turns":
        return _turns(value, all_turns=all_turns), settings
    return _Question(messages=_conversation(value)), settings


def _batch(fields: Mapping[str, Any]) -> tuple[_Question, dict[str, Any]]:
    """A line of an OpenAI Batch file."""
    body, url, method = fields["body"], fields.get("url"), fields.get("method")
    if not isinstance(body, dict):
        raise RequestError(f"`body` must be an object, not {json_type(body)}", "Put the request itself there.")
    if method is not None and method != "POST":
        raise RequestError(f"`method` is {shown(method)}", "Write POST, or leave it out.")
    if url is not None and (not isinstance(url, str) or url not in _BATCH_URLS):
        raise RequestError(f"`url` is {shown(url)}", f"Write {' or '.join(_BATCH_URLS)}, or leave it out.")
    misplaced = [name for name in SETTINGS if fields.get(name) is not None]
    if misplaced:
        raise RequestError(f"`{misplaced[0]}` stands beside `body`", "Put it into `body`.")
    kinds = [kind for kind in ("messages", "prompt") if body.get(kind) is not None]
    kind = _BATCH_URLS[url] if url is not None else (kinds[0] if len(kinds) == 1 else "messages")
    if kinds != [kind]:
        if kind in kinds:
            raise RequestError("`body` has both `messages` and `prompt`", f"Keep `{kind}` alone.")
        raise RequestError(f"`body` has no `{kind}`", f"Give it `{kind}`.")
    settings = read_settings(body, is_body=True)
    if kind == "messages":
        return _Question(messages=_messages(body["messages"])), settings
    prompt = body["prompt"]
    if isinstance(prompt, list) and len(prompt) == 1 and isinstance(prompt[0], str | list):
        prompt = prompt[0]
    if isinstance(prompt, list):
        if any(isinstance(part, str | list) for part in prompt):
            raise RequestError("`prompt` holds several prompts", "Give each a row of its own.")
        return _Question(token_ids=_token_ids(prompt, "prompt")), settings
    return _Question(prompt=_string(prompt, "prompt")), settings


def _string(value: object, name: str) -> str:
    if not isinstance(value, str):
        raise RequestError(f"`{name}` must be a string, not {json_type(value)}", f"Put text into `{name}`.")
    try:
        value.encode("utf-8")
    except UnicodeEncodeError:
        raise RequestError(f"`{name}` holds an unpaired surrogate, which is no character", "Remove it.") from None
    return value


def _field(fields: Mapping[str, Any], key: str, name: str) -> object:
    """What the object `name` has under `key`."""
    if key not in fields:
        raise RequestError(f"`{name}.{key}` is missing", f"Put text into `{name}.{key}`.")
    return fields[key]


def _token_ids(value: object, name: str) -> list[int]:
    if not isinstance(value, list) or not all(type(token) is int and 0 <= token < 2**31 for token in value):
        raise RequestError(f"`{name}` is no list of token ids", "Give whole numbers from 0 up.")
    return value


def _list(value: object, name: str) -> list[Any]:
    if not isinstance(value, list):
        raise RequestError(f"`{name}` must be a list, not {json_type(value)}", "Put it in square brackets.")
    if not value:
        raise RequestError(f"`{name}` is empty", "Give at least one entry.")
    return value


def _messages(value: object) -> list[Message]:
    messages = []
    for number, message in enumerate(_list(value, "messages")):
        name = f"messages[{number}]"
        if not isinstance(message, dict):
            raise RequestError(
                f"`{name}` must be an object, not {json_type(message)}", 'Write {"role": …, "content": …}.'
            )
        if message.get("tool_calls") or message.get("function_call"):
            raise RequestError(f"`{name}` has tool calls, which are not supported", "Leave them out.")
        role = _string(_field(message, "role", name), f"{name}.role")
        messages.append({"role": role, "content": _content(_field(message, "content", name), f"{name}.content")})
    return messages


def _content(value: object, name: str) -> str:
    """The text of a message, which may come in parts."""
    if not isinstance(value, list):
        return _string(value, name)
    texts = []
    for part in value:
        if not isinstance(part, dict) or part.get("type") != "text":
            kind = part.get("type") if isinstance(part, dict) else None
            but = f" but {shown(kind)}" if kind else ""
            raise RequestError(f"`{name}` has a part that is not text{but}", "Give parts of type text alone.")
        texts.append(_string(_field(part, "text", name), f"{name}.text"))
    return "".join(texts)


def _turns(value: object, *, all_turns: bool) -> _Question:
    turns = [_string(turn, f"turns[{number}]") for number, turn in enumerate(_list(value, "turns"))]
    later = tuple(turns[1:]) if all_turns else ()
    return _Question(messages=[{"role": "user", "content": turns[0]}], later_turns=later)


def _conversation(value: object) -> list[Message]:
    messages = []
    for number, turn in enumerate(_list(value, "conversations")):
        name = f"conversations[{number}]"
        if not isinstance(turn, dict):
            raise RequestError(f"`{name}` must be an object, not {json_type(turn)}", 'Write {"from": …, "value": …}.')
        speaker = _string(_field(turn, "from", name), f"{name}.from")
        role = _SHAREGPT_ROLES.get(speaker)
        if role is None:
            raise RequestError(f"`{name}.from` is {shown(speaker)}", f"Known are {', '.join(_SHAREGPT_ROLES)}.")
        messages.append({"role": role, "content": _string(_field(turn, "value", name), f"{name}.value")})
    while messages and messages[-1]["role"] == "assistant":
        messages.pop()
    if not messages or messages[-1]["role"] != "user":
        raise RequestError("`conversations` holds nothing to answer", "End it with a turn of the user.")
    return messages
