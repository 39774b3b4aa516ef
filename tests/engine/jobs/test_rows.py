import gzip
import io
import json
import os
import threading

import pytest

from dspark.engine.errors import UsageError
from dspark.engine.jobs.input_file import Line, open_input
from dspark.engine.jobs.rows import parse_row, read_rows


def row_of(value, *, all_turns=False):
    content = value if isinstance(value, bytes) else json.dumps(value).encode()
    return parse_row(Line(0, 1, content), all_turns=all_turns)


USER = {"role": "user", "content": "hi"}
KINDS = {
    "prompt": ({"prompt": "hi"}, "prompt", "hi"),
    "token ids": ({"prompt_token_ids": [1, 2]}, "token_ids", [1, 2]),
    "messages": ({"messages": [USER]}, "messages", [USER]),
    "content parts": (
        {"messages": [{"role": "user", "content": [{"type": "text", "text": "h"}, {"type": "text", "text": "i"}]}]},
        "messages",
        [USER],
    ),
    "turns": ({"turns": ["hi", "and?"]}, "messages", [USER]),
    "ShareGPT": (
        {"conversations": [{"from": "human", "value": "hi"}, {"from": "gpt", "value": "recorded"}]},
        "messages",
        [USER],
    ),
    "ShareGPT history": (
        {"conversations": [{"from": k, "value": k} for k in ("system", "human", "gpt", "human")]},
        "messages",
        [
            {"role": "system", "content": "system"},
            {"role": "user", "content": "human"},
            {"role": "assistant", "content": "gpt"},
            {"role": "user", "content": "human"},
        ],
    ),
    "batch chat": (
        {"custom_id": "a", "method": "POST", "url": "/v1/chat/completions", "body": {"model": "m", "messages": [USER]}},
        "messages",
        [USER],
    ),
    "batch text": ({"url": "/v1/completions", "body": {"prompt": "hi"}}, "prompt", "hi"),
    "batch one text": ({"url": "/v1/completions", "body": {"prompt": ["hi"]}}, "prompt", "hi"),
    "batch token ids": ({"url": "/v1/completions", "body": {"prompt": [3, 4]}}, "token_ids", [3, 4]),
    "batch without url": ({"body": {"messages": [USER]}}, "messages", [USER]),
    "unknown keys": ({"prompt": "hi", "task_id": 7, "reference": None, "messages": None}, "prompt", "hi"),
}


@pytest.mark.parametrize(("value", "kind", "expected"), KINDS.values(), ids=KINDS)
def test_every_kind_of_row_is_read(value, kind, expected):
    row = row_of(value)
    assert row.error is None
    assert getattr(row, kind) == expected
    assert sum(getattr(row, k) is not None for k in ("prompt", "token_ids", "messages")) == 1


def test_all_turns_keeps_the_later_ones():
    assert row_of({"turns": ["a", "b", "c"]}, all_turns=True).later_turns == ("b", "c")
    assert row_of({"turns": ["a", "b", "c"]}).later_turns == ()


def test_settings_and_their_other_names():
    settings = {
        "max_completion_tokens": 5,
        "temperature": 1,
        "top_p": 0.5,
        "top_k": 4,
        "seed": 3,
        "stop": "x",
        "ignore_eos": True,
    }
    expected = {
        "max_tokens": 5,
        "temperature": 1,
        "top_p": 0.5,
        "top_k": 4,
        "seed": 3,
        "stop": ("x",),
        "ignore_eos": True,
    }
    neutral = {
        "n": 1,
        "logprobs": False,
        "tools": [],
        "response_format": {"type": "text"},
        "presence_penalty": 0.0,
        "min_p": 0,
    }
    assert row_of({"prompt": "p", **settings, **neutral}).settings == expected
    assert row_of({"body": {"messages": [USER], "stream": False, **settings, **neutral}}).settings == expected
    # Of a sender's own, and what asks for nothing.
    labels = {"model": "m", "user": "u", "metadata": {"a": "b"}, "store": True, "reasoning_effort": None}
    assert row_of({"body": {"messages": [USER], **labels, **settings}}).settings == expected


BAD = {
    "not JSON": (b"{", "not JSON"),
    "not UTF-8": (b'{"prompt": "\xff"}', "not UTF-8"),
    "NaN": (b'{"prompt": "a", "temperature": NaN}', "NaN"),
    "nested": (b"[" * 100_000, "not JSON"),
    "long number": (
        b'{"prompt": "a", "seed": ' + b"9" * 5000 + b"}",
        "not JSON (the number " + "9" * 37 + "... is too large). ",
    ),
    "list": ([1], "expected a JSON object, got a list"),
    "string": ("prompt", "got a string"),
    "nothing asked": ({"question": "?"}, "no prompt"),
    "infinity": (b'{"prompt": "a", "temperature": 1e999}', "1e999 is too large"),
    "min_p": ({"prompt": "a", "min_p": 0.1}, "`min_p`"),
    "min_tokens": ({"messages": [USER], "min_tokens": 3}, "`min_tokens`"),
    "guided": ({"prompt": "a", "guided_json": {}}, "`guided_json`"),
    "guided otherwise": ({"body": {"messages": [USER], "guided_whatever": "x"}}, "`guided_whatever`"),
    "structured": ({"prompt_token_ids": [1], "structured_outputs": {"regex": "a"}}, "`structured_outputs`"),
    "prompt logprobs": ({"turns": ["a"], "prompt_logprobs": 1}, "`prompt_logprobs`"),
    "two kinds": ({"prompt": "a", "turns": ["b"]}, "`prompt` and `turns`"),
    "prompt type": ({"prompt": 3}, "`prompt` must be a string, not a whole number"),
    "surrogate": (b'{"prompt": "\\ud800"}', "unpaired surrogate"),
    "token type": ({"prompt_token_ids": [1, True]}, "token ids"),
    "method": ({"method": "GET", "body": {"prompt": "a"}}, "`method` is 'GET'"),
    "negative token": ({"prompt_token_ids": [-1]}, "token ids"),
    "no messages": ({"messages": []}, "`messages` is empty"),
    "message type": ({"messages": ["hi"]}, "`messages[0]` must be an object"),
    "no content": ({"messages": [{"role": "user"}]}, "`messages[0].content` is missing"),
    "null content": ({"messages": [USER | {"content": None}]}, "`messages[0].content` must be a string, not null"),
    "no value": ({"conversations": [{"from": "human"}]}, "`conversations[0].value` is missing"),
    "image": ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "'image_url'"),
    "turn type": ({"turns": ["a", 1]}, "`turns[1]`"),
    "speaker": ({"conversations": [{"from": "alien", "value": "x"}]}, "alien"),
    "only answers": ({"conversations": [{"from": "gpt", "value": "x"}]}, "nothing to answer"),
    "custom_id": ({"custom_id": 7, "prompt": "a"}, "`custom_id` must be a string"),
    "body type": ({"body": "x"}, "`body` must be an object"),
    "url": ({"url": "/v1/embeddings", "body": {"input": "x"}}, "/v1/completions"),
    "body kind": ({"url": "/v1/completions", "body": {"messages": [USER]}}, "`body` has no `prompt`"),
    "several prompts": ({"body": {"prompt": ["a", "b"]}}, "several prompts"),
    "misplaced": ({"max_tokens": 3, "body": {"prompt": "a"}}, "`max_tokens` stands beside `body`"),
    "n": ({"prompt": "a", "n": 2}, "`n` is not supported"),
    "logprobs": ({"body": {"messages": [USER], "logprobs": True}}, "`logprobs`"),
    "penalty": ({"prompt": "a", "frequency_penalty": 0.1}, "`frequency_penalty`"),
    "format": ({"prompt": "a", "response_format": {"type": "json_object"}}, "`response_format`"),
    "tools": ({"messages": [USER], "tools": [{"type": "function"}]}, "`tools`"),
    "stream": ({"body": {"messages": [USER], "stream": True}}, "`stream`"),
    "limit type": ({"prompt": "a", "max_tokens": 3.5}, "`max_tokens` must be a whole number, not 3.5"),
    "two limits": ({"prompt": "a", "max_tokens": 3, "max_completion_tokens": 4}, "differ"),
    "boolean": ({"prompt": "a", "temperature": True}, "`temperature` must be a number, not a boolean"),
    "flag type": ({"prompt": "a", "ignore_eos": 1}, "`ignore_eos` must be a boolean, not a whole number"),
    "misspelt kind": ({"promt": "a"}, "no prompt, but `promt`. Perhaps `prompt` is meant."),
    "misspelt kind in capitals": ({"Messages": [USER]}, "Perhaps `messages` is meant."),
    "unknown in a body": (
        {"body": {"messages": [USER], "reasoning_effort": "low"}},
        "`reasoning_effort` is not a field",
    ),
    "misspelt in a body": ({"body": {"messages": [USER], "max_token": 3}}, "Perhaps `max_tokens` is meant."),
    "stop type": ({"prompt": "a", "stop": {"a": 1}}, "`stop` must be"),
}


@pytest.mark.parametrize(("value", "reason"), BAD.values(), ids=BAD)
def test_a_bad_row_says_why(value, reason):
    error = row_of(value).error
    assert reason in error
    # What is wrong, and then what to do, as a sentence.
    assert error.endswith(".") and ". " in error


def test_a_bad_row_keeps_its_custom_id():
    assert row_of({"custom_id": "x", "prompt": 1}).custom_id == "x"


REPEATED = {
    "top": (b'{"custom_id": "x", "temperature": 0, "prompt": "a", "temperature": 1}', "temperature"),
    "in-a-message": (b'{"custom_id": "x", "messages": [{"role": "user", "role": "system", "content": "a"}]}', "role"),
    "in-a-body": (b'{"custom_id": "x", "body": {"prompt": "a", "prompt": "b"}}', "prompt"),
    "alike": (b'{"custom_id": "x", "prompt": "a", "prompt": "a"}', "prompt"),
    "escaped": (b'{"custom_id": "x", "prompt": "a", "\\u0070rompt": "b"}', "prompt"),
}


@pytest.mark.parametrize(("content", "key"), REPEATED.values(), ids=REPEATED)
def test_a_key_that_stands_twice_is_refused_by_name(content, key):
    row = row_of(content)
    assert row.error == f"`{key}` stands twice in one object. Keep one of them."
    assert row.custom_id == "x"


def test_one_key_in_two_objects_is_no_repetition():
    assert row_of({"prompt": "a", "dataset": {"prompt": "b"}}).error is None


def test_lines_end_in_newlines_only(tmp_path):
    path = tmp_path / "in.jsonl"
    text = '\ufeff{"prompt": "a\u2028b\u0085c"}\r\n\n   \r\n{"prompt": "d"}'
    path.write_bytes(text.encode())
    source = open_input(str(path))
    rows = list(read_rows(source.lines(), all_turns=False))
    assert [(r.index, r.line, r.prompt) for r in rows] == [(0, 1, "a\u2028b\u0085c"), (1, 4, "d")]
    assert source.num_rows == 2


def test_gzip_and_plain_are_one_input(tmp_path):
    content = b'{"prompt": "a"}\n' * 3
    (tmp_path / "plain").write_bytes(content)
    (tmp_path / "zipped").write_bytes(gzip.compress(content))
    plain, zipped = open_input(str(tmp_path / "plain")), open_input(str(tmp_path / "zipped"))
    assert (plain.num_rows, plain.sha256) == (zipped.num_rows, zipped.sha256) == (3, plain.sha256)
    assert [x.content for x in plain.lines()] == [x.content for x in zipped.lines()]


@pytest.mark.parametrize("damage", [lambda b: b[:-9], lambda b: b[:12] + b"\xff\xff\xff" + b[15:]], ids=["cut", "bits"])
def test_damaged_gzip_is_refused(tmp_path, damage):
    (tmp_path / "x.gz").write_bytes(damage(gzip.compress(os.urandom(50) + b"\n")))
    with pytest.raises(UsageError, match="damaged gzip"):
        open_input(str(tmp_path / "x.gz"))


def test_utf16_and_missing_files_are_refused(tmp_path):
    (tmp_path / "x").write_text('{"prompt": "a"}', encoding="utf-16")
    with pytest.raises(UsageError, match="UTF-16"):
        open_input(str(tmp_path / "x"))
    with pytest.raises(UsageError, match="cannot read"):
        open_input(str(tmp_path / "missing"))
    with pytest.raises(UsageError, match="cannot read"):
        open_input(str(tmp_path))


def test_duplicate_custom_ids_are_refused_with_both_lines(tmp_path):
    (tmp_path / "x").write_text('{"custom_id": "a", "prompt": "1"}\n\n{"\\u0063ustom_id": "a", "prompt": 2}\n')
    with pytest.raises(UsageError, match='"a" stands on line 1 and again on line 3'):
        open_input(str(tmp_path / "x"))


def test_a_closed_stdin_is_refused(monkeypatch):
    monkeypatch.setattr("sys.stdin", None)
    with pytest.raises(UsageError, match="standard input is closed"):
        open_input("-")


def test_stdin_and_pipes_are_read_once_and_kept(tmp_path, monkeypatch):
    content = b'{"prompt": "a"}\n{"prompt": "b"}\n'
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(content)))
    source = open_input("-")
    assert source.num_rows == 2
    assert len(list(source.lines())) == len(list(source.lines())) == 2
    os.mkfifo(tmp_path / "pipe")
    writer = threading.Thread(target=lambda: (tmp_path / "pipe").write_bytes(content))
    writer.start()
    assert open_input(str(tmp_path / "pipe")).sha256 == source.sha256
    writer.join()
