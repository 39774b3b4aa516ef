"""Every line that somebody may bring, through the real engine and a real tokenizer: a row each, and no traceback."""

import gzip
import json
import shutil
from pathlib import Path

import pytest
from byte_tokenizer import save_byte_tokenizer
from fixture_engine import FIXTURES

from dspark.cli.main import main

PAIR = FIXTURES / "dspark_rnn"


def row(prompt="ab", **fields):
    return json.dumps({"prompt": prompt, **fields}).encode()


USER = {"role": "user", "content": "hi"}
# Name -> the line, and what its error says; None: it is answered.
LINES = {
    "first, behind a byte order mark": (b"\xef\xbb\xbf" + row(), None),
    "null": (b"null", "got null"),
    "list": (b"[1]", "got a list"),
    "number": (b"3.5", "got a number"),
    "1 MB": (row("x" * 1_000_000), "leaves none of the context limit"),
    "empty": (row(""), "empty after tokenising"),
    "one special token": (row("</s>"), None),
    "special tokens alone": (row("<s><pad></s></s>"), None),
    "line separators": ('{"prompt": "a\u2028b\u2029c\u0085"}'.encode(), None),
    "carriage return inside": (b'{"prompt":\r "a"}', None),
    "control character": (row("\x00\x1b[2J"), None),
    "half a surrogate pair": (b'{"prompt": "\\ud83d"}', "unpaired surrogate"),
    "surrogate pair": (b'{"prompt": "\\ud83d\\ude00"}', None),
    "unknown role": (json.dumps({"messages": [{"role": "oracle", "content": "hi"}]}).encode(), None),
    "role that is no text": (json.dumps({"messages": [{"role": 1, "content": "hi"}]}).encode(), "`messages[0].role`"),
    "no custom_id": (json.dumps({"body": {"messages": [USER], "max_tokens": 3}}).encode(), None),
    "negative limit": (row(max_tokens=-1), "max_tokens is -1"),
    "no tokens": (row(max_tokens=0), "max_tokens is 0"),
    "limit past any context": (row(max_tokens=2**31 - 1), None),
    "limit past any number": (row(max_tokens=10**30), "max_tokens is 1000000"),
    "limit as text": (row(max_tokens="9"), "`max_tokens` must be a whole number"),
    "stop as text": (row(stop="e"), None),
    "stop as a list": (row(stop=["e", "xyzxyz"]), None),
    "empty stop": (row(stop=[""]), "stop holds"),
    "stop of numbers": (row(stop=[3]), "`stop` must be"),
    "NaN": (b'{"prompt": "a", "temperature": NaN}', "NaN is not JSON"),
    "negative temperature": (row(temperature=-0.5), "temperature is -0.5"),
    "temperature as text": (row(temperature="hot"), "`temperature` must be a number"),
    "settings of other types": (row(top_p=[1]), "`top_p` must be a number"),
    "seed of a fraction": (row(seed=0.5), "`seed` must be a whole number"),
    "tokens past the vocabulary": (b'{"prompt_token_ids": [1, 256]}', "outside 0"),
    "the last, with no line end": (row("z"), None),
}


@pytest.fixture(scope="module")
def target(tmp_path_factory):
    folder = tmp_path_factory.mktemp("hostile") / "target"
    shutil.copytree(PAIR / "target", folder)
    save_byte_tokenizer(folder)
    return folder


@pytest.mark.parametrize("zipped", [False, True], ids=["plain", "gz"])
def test_hostile_lines_are_rows_like_any_other(tmp_path, monkeypatch, capsys, target, zipped):
    monkeypatch.chdir(tmp_path)
    content = b"\r\n\r\n".join(line for line, _ in LINES.values())
    name = "prompts.jsonl.gz" if zipped else "prompts.jsonl"
    Path(name).write_bytes(gzip.compress(content) if zipped else content)
    command = ["decode", "-i", name, "--target", str(target), "--drafter", str(PAIR / "draft"), "--device", "cpu"]
    assert main([*command, "--max-tokens", "8", "-o", "out.jsonl"]) == 3
    assert "Traceback" not in capsys.readouterr().err
    rows = [json.loads(line) for line in Path("out.jsonl").read_bytes().split(b"\n")[:-1]]
    assert [found["index"] for found in rows] == list(range(len(LINES)))
    for number, (found, (what, (_, error))) in enumerate(zip(rows, LINES.items(), strict=True)):
        if error is None:
            assert found["finish_reason"] in ("stop", "length") and isinstance(found["text"], str), what
        else:
            # Between any two of them there is a blank line.
            assert found["error"].startswith(f"line {2 * number + 1}: ") and error in found["error"], what


def test_an_empty_gz_file_is_an_empty_output(tmp_path, monkeypatch, target):
    monkeypatch.chdir(tmp_path)
    Path("prompts.jsonl.gz").write_bytes(gzip.compress(b""))
    assert main(["decode", "-i", "prompts.jsonl.gz", "--target", str(target), "--drafter", "none", "-o", "out"]) == 0
    assert Path("out").read_bytes() == b""


def test_two_rows_of_one_id_refuse_the_file_before_a_model_is_loaded(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("in.jsonl").write_bytes(row(custom_id="a") + b"\n" + row(custom_id="a"))
    assert main(["decode", "-i", "in.jsonl", "--target", "no/such-model"]) == 2
    assert 'custom_id "a" stands on line 1 and again on line 2' in capsys.readouterr().err


def test_a_batch_output_is_shown_and_written_by_the_command(tmp_path, monkeypatch, capsys, target):
    monkeypatch.chdir(tmp_path)
    Path("in.jsonl").write_bytes(row("a", custom_id="greeting"))
    command = ["decode", "-i", "in.jsonl", "--target", str(target), "--drafter", "none", "--max-tokens", "3"]
    assert main([*command, "--output-format", "openai-batch"]) == 0
    line = json.loads(Path("dspark-out/decode.jsonl").read_text())
    assert line["response"]["body"]["model"] == str(target)
    assert main([*command, "--output-format", "csv", "--overwrite"]) == 2
    assert "--output-format is 'csv'\n  Choose one of: dspark, openai-batch." in capsys.readouterr().err
