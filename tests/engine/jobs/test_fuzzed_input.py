"""Whatever the lines of an input are, each is one row out, in order, and an error of it names its line."""

from __future__ import annotations

import gzip
import json
import random
import string
from dataclasses import replace

import pytest
from fake_engine import CharCodec, FakeEngine, NoProgress
from finished_rows import record
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dspark.engine.errors import UsageError
from dspark.engine.jobs import strict_json
from dspark.engine.jobs.decode_job import DecodeJob, decode_file
from dspark.engine.jobs.input_file import open_input
from dspark.engine.jobs.request_fields import KINDS, SETTINGS
from dspark.engine.jobs.results import ResultFile
from dspark.engine.requests import SamplingParams

LINES = 10_000
NAMES = (*KINDS, *SETTINGS, "custom_id", "n", "tools", "url", "method", "dataset", "role", "content", "from", "value")
TEXTS = ("", "a", "é\u2028\u0085", "\ud800", "\x00", "user", "POST", "/v1/completions", "</s>" * 40, "1", "\\")
NUMBERS = (0, 1, -1, 3, 2**31, 2**63, -(2**70), 10**400, 0.5, -0.0, 1e308, float("nan"), float("inf"), True, False)


def value(rng: random.Random, depth: int = 0) -> object:
    kind = rng.randrange(8 if depth < 3 else 4)
    if kind == 0:
        return None
    if kind in (1, 4):
        return rng.choice(TEXTS)
    if kind == 2:
        return rng.choice(NUMBERS)
    if kind == 3:
        return "".join(rng.choices(string.printable, k=rng.randrange(6)))
    if kind == 5:
        return [value(rng, depth + 1) for _ in range(rng.randrange(4))]
    return {rng.choice(NAMES): value(rng, depth + 1) for _ in range(rng.randrange(4))}


def line(rng: random.Random, number: int) -> bytes:
    """A row, or something that is nearly one; never blank, and with no line end in it."""
    if rng.random() < 0.15:
        return rng.randbytes(rng.randrange(1, 30)).replace(b"\n", b"?").replace(b"\r", b"?") + b"."
    if rng.random() < 0.3:
        sound = {
            "prompt": rng.choice(["hi", "é\u2028"]),
            "max_tokens": rng.randrange(1, 5),
            "stop": rng.choice(["x", ["y"]]),
        }
        return json.dumps(sound).encode()
    fields = {rng.choice(NAMES): value(rng) for _ in range(rng.randrange(4))}
    if rng.random() < 0.7:
        fields[rng.choice(KINDS)] = rng.choice(["hi", [3, 4], [{"role": "user", "content": "x"}], ["a", "b"]])
    if fields.get("custom_id") is not None:
        # Two alike refuse the whole file.
        fields["custom_id"] = f"{number}"
    content = json.dumps(fields, ensure_ascii=rng.random() < 0.5).encode("utf-8", "surrogatepass")
    if rng.random() < 0.15:
        # Torn, or with a byte that is another.
        content = (
            content[: rng.randrange(1, len(content))]
            if rng.random() < 0.5
            else bytes([rng.randrange(33, 256)]) + content[1:]
        )
    return content


def decode(job: DecodeJob, engine: FakeEngine | None = None) -> list[dict]:
    decode_file(engine or FakeEngine(), CharCodec(), job, NoProgress())
    return [strict_json.loads(content.decode()) for content in job.output.read_bytes().split(b"\n")[:-1]]


@pytest.mark.parametrize("seed", range(4))
def test_10000_fuzzed_lines_are_each_accounted_for(tmp_path, seed):
    rng = random.Random(seed)
    lines = [line(rng, number) for number in range(LINES // 4)]
    # Blank ones between them count as lines, not as rows.
    numbers, content, number = [], bytearray(b"\xef\xbb\xbf" if seed % 2 else b""), 0
    for one in lines:
        for _ in range(rng.random() < 0.1):
            content += b" \r\n"
            number += 1
        number += 1
        numbers.append(number)
        content += one + (b"\r\n" if rng.random() < 0.3 else b"\n")
    source = tmp_path / ("in.jsonl.gz" if seed > 1 else "in.jsonl")
    # The last line has no end.
    content = bytes(content).rstrip(b"\r\n")
    source.write_bytes(gzip.compress(content) if seed > 1 else content)
    job = DecodeJob(
        open_input(str(source)), tmp_path / "out", tmp_path / "m", SamplingParams(), all_turns=seed % 2 == 1
    )
    rows = decode(job)
    assert [row["index"] for row in rows] == list(range(len(lines)))
    for row, at in zip(rows, numbers, strict=True):
        if row["finish_reason"] == "error":
            assert row["error"].startswith(f"line {at}: ")
        else:
            assert row["error"] is None and isinstance(row["text"], str)
    errors = sum(row["finish_reason"] == "error" for row in rows)
    assert len(rows) / 10 < errors < len(rows) * 0.95


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters(), max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(NAMES) | st.text(max_size=8), inner),
    max_leaves=12,
)
fuzzed_lines = st.one_of(
    # The marks of another kind of file would make the first line one of it.
    st.binary(min_size=1, max_size=40)
    .map(lambda b: b.replace(b"\n", b"?") + b".")
    .filter(lambda b: not b.startswith((b"\x1f\x8b", b"\xff\xfe", b"\xfe\xff"))),
    st.dictionaries(st.sampled_from(NAMES), json_values, max_size=5)
    .map(lambda fields: {name: entry for name, entry in fields.items() if name != "custom_id"})
    .map(lambda fields: json.dumps(fields).encode()),
    json_values.map(lambda entry: json.dumps(entry).encode()),
)


@given(lines=st.lists(fuzzed_lines, max_size=12), stop_at=st.integers(0, 12))
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_input_interrupted_anywhere_ends_as_it_would_have(tmp_path, lines, stop_at):
    source = tmp_path / "in.jsonl"
    source.write_bytes(b"\n".join(lines))
    job = DecodeJob(
        open_input(str(source)), tmp_path / "whole", tmp_path / "m", SamplingParams(max_tokens=9), overwrite=True
    )
    expected = decode(job)

    def stop(index):
        if len(engine.asked) > stop_at:
            raise KeyboardInterrupt

    engine = FakeEngine(before=stop)
    again = replace(job, output=tmp_path / "again")
    resume = False
    try:
        decode(again, engine)
    except KeyboardInterrupt:
        resume = True
    assert decode(replace(again, resume=resume, overwrite=not resume)) == expected


@given(content=st.binary(max_size=400), kept=st.integers(0, 10_000))
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_partial_file_with_any_tail_is_gone_on_from_or_refused(tmp_path, content, kept):
    output = tmp_path / "out.jsonl"
    header, num_rows = {"engine": {"target": "t"}}, 3
    results = ResultFile(output, header=header, num_rows=num_rows, resume=False, overwrite=True)
    whole = b""
    for index in (2, 0):
        results.append(index, record(index))
        whole = results.partial.read_bytes()
    results.close()
    results.partial.write_bytes(whole[:kept] + content)
    try:
        results = ResultFile(output, header=header, num_rows=num_rows, resume=True)
    except UsageError as refused:
        assert refused.remedy
        # Only what is no partial file of this run, from its first line on.
        assert kept < whole.index(b"\n") + 1
        results.partial.unlink()
        return
    done = {found["index"] for found in results.records()}
    assert done >= {
        index for index, place in ((2, 1), (0, 2)) if kept >= len(b"".join(whole.splitlines(True)[: place + 1]))
    }
    for index in set(range(num_rows)) - done:
        results.append(index, record(index))
    assert [found["index"] for found in results.records()] == [0, 1, 2]
    results.close()
