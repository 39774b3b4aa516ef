import json

import pytest
from finished_rows import record

from dspark.engine.errors import EngineError, UsageError
from dspark.engine.jobs import strict_json
from dspark.engine.jobs.output_places import check_output, is_finished, partial_path
from dspark.engine.jobs.results import ResultFile

HEADER = {"engine": {"target": "t", "policy": "none"}, "stop": ()}


def opened(tmp_path, *, resume=False, overwrite=False, header=HEADER, num_rows=4):
    return ResultFile(tmp_path / "out.jsonl", header=header, num_rows=num_rows, resume=resume, overwrite=overwrite)


def publish(results):
    results.publish(strict_json.dumps(record["row"]) for record in results.records())
    results.discard_partial()


def test_rows_come_out_in_index_order(tmp_path):
    results = opened(tmp_path)
    for index in (2, 0, 3, 1):
        results.append(index, record(index))
        assert not (tmp_path / "out.jsonl").exists()
    publish(results)
    assert [json.loads(x)["index"] for x in (tmp_path / "out.jsonl").read_text().splitlines()] == [0, 1, 2, 3]
    assert [p.name for p in tmp_path.iterdir()] == ["out.jsonl"]


def test_resumed_after_a_cut_at_any_byte(tmp_path):
    partial = partial_path(tmp_path / "out.jsonl")
    results = opened(tmp_path)
    for index in (2, 0):
        results.append(index, record(index))
    results.close()
    whole = partial.read_bytes()
    for length in range(len(whole) + 1):
        partial.write_bytes(whole[:length])
        results = opened(tmp_path, resume=True)
        complete_rows = max(whole[:length].count(b"\n") - 1, 0)
        assert results.num_done == complete_rows
        assert [r["index"] for r in results.records()] == sorted([2, 0][:complete_rows])
        for index in range(4):
            if not results.is_done(index):
                results.append(index, record(index))
        results.close()
        assert sorted(json.loads(x)["index"] for x in partial.read_text().splitlines()[1:]) == [0, 1, 2, 3]


def test_zeros_of_a_power_cut_are_torn_off(tmp_path):
    results = opened(tmp_path)
    results.append(1, record(1))
    results.close()
    with partial_path(tmp_path / "out.jsonl").open("ab") as file:
        file.write(b"\0" * 50 + b"\n" + b"\0" * 10)
    results = opened(tmp_path, resume=True)
    assert results.num_done == 1
    results.close()


def test_of_a_row_that_stands_twice_the_last_line_counts(tmp_path):
    partial = partial_path(tmp_path / "out.jsonl")
    results = opened(tmp_path)
    for index in range(3):
        results.append(index, record(index, f"first {index}"))
    results.close()
    again = strict_json.dumps({"index": 1, **record(1, "second 1")}) + b"\n"
    with partial.open("ab") as file:
        file.write(again + again)
    results = opened(tmp_path, resume=True)
    assert (results.num_done, [results.is_done(index) for index in range(4)]) == (3, [True, True, True, False])
    results.append(3, record(3, "first 3"))
    publish(results)
    rows = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert [(row["index"], row["text"]) for row in rows] == [
        (0, "first 0"),
        (1, "second 1"),
        (2, "first 2"),
        (3, "first 3"),
    ]


def changed(path, value):
    """The line of row 1 with `value` at `path`, dotted."""
    line = {"index": 1, **record(1)}
    *above, last = path.split(".")
    place = line
    for name in above:
        place = place[name]
    if value is ...:
        del place[last]
    else:
        place[last] = value
    return strict_json.dumps(line) + b"\n"


NO_ROWS = {
    "index is true": ("index", True),
    "index is a fraction": ("index", 1.0),
    "two indices": ("row.index", 2),
    "no row": ("row", ...),
    "row is null": ("row", None),
    "row is a list": ("row", []),
    "usage is null": ("row.usage", None),
    "tokens are negative": ("row.usage.prompt_tokens", -1),
    "tokens are huge": ("row.usage.completion_tokens", 2**70),
    "tokens are text": ("row.usage.completion_tokens", "5"),
    "usage has more": ("row.usage.total_tokens", 7),
    "spec is null": ("row.spec", None),
    "spec lacks a count": ("row.spec.verified", ...),
    "histogram is a number": ("row.spec.acceptance_histogram", 3),
    "histogram holds a fraction": ("row.spec.acceptance_histogram", [0.5]),
    "reason is not known": ("row.finish_reason", "abort"),
    "reason is a list": ("row.finish_reason", []),
    "error without a reason": ("row.finish_reason", "error"),
    "observed is null": ("observed", None),
    "text is a number": ("row.text", 3),
    "unknown field": ("row.rows", 1),
}


@pytest.mark.parametrize(("path", "value"), NO_ROWS.values(), ids=NO_ROWS)
def test_a_line_that_is_no_whole_row_is_decoded_again_at_the_end_and_refused_before_rows(tmp_path, path, value):
    partial = partial_path(tmp_path / "out.jsonl")
    results = opened(tmp_path)
    results.append(0, record(0))
    results.close()
    before = partial.read_bytes()
    partial.write_bytes(before + changed(path, value))
    results = opened(tmp_path, resume=True)
    assert [results.is_done(index) for index in range(4)] == [True, False, False, False]
    assert results.num_done == 1
    results.close()
    assert partial.read_bytes() == before
    damaged = before + changed(path, value) + strict_json.dumps({"index": 2, **record(2)}) + b"\n"
    partial.write_bytes(damaged)
    with pytest.raises(EngineError, match=r"line 3 of .*out.jsonl.partial holds no whole row") as refused:
        opened(tmp_path, resume=True)
    assert "--overwrite" in refused.value.remedy
    assert partial.read_bytes() == damaged


def test_a_run_with_traces_takes_no_row_without_rounds(tmp_path):
    header = {**HEADER, "traces": True}
    results = opened(tmp_path, header=header)
    results.append(0, {**record(0), "trace": {"dataset": "", "rounds": ""}})
    results.append(1, record(1))
    results.close()
    results = opened(tmp_path, header=header, resume=True)
    assert [results.is_done(index) for index in (0, 1)] == [True, False]
    results.close()


def test_another_runs_partial_is_refused_by_name(tmp_path):
    opened(tmp_path).close()
    other = {"engine": {"target": "u", "policy": "none"}, "stop": ()}
    with pytest.raises(UsageError, match=r'differs in --target \("t" then, "u" now\)$'):
        opened(tmp_path, resume=True, header=other)
    opened(tmp_path, resume=True).close()


def test_models_of_another_run_are_told_by_name_where_one_was_recorded_and_compared_by_weights(tmp_path):
    then = {"engine": {"target": "t", "drafter": "d"}, "names": {"target": "big", "drafter": "small"}}
    opened(tmp_path, header=then).close()
    renamed = {"engine": then["engine"], "names": {"target": "large", "drafter": "little"}}
    opened(tmp_path, resume=True, header=renamed).close()
    now = {"engine": {"target": "u", "drafter": "none"}, "names": {"target": None, "drafter": "none"}}
    told = r'differs in --drafter \(small "d" then, "none" now\); --target \(big "t" then, "u" now\)$'
    with pytest.raises(UsageError, match=told):
        opened(tmp_path, resume=True, header=now)


FOREIGN = {
    "rows": b'{"mine": 1}\n',
    "text": b"what I wrote\nby hand\n",
    "no line end": b"notes",
    "binary": b"\x00\xff" * 40,
    "JSON of another kind": b'{"dspark": 1}\n',
}


@pytest.mark.parametrize("flag", ["resume", "overwrite"])
@pytest.mark.parametrize("content", FOREIGN.values(), ids=FOREIGN)
def test_a_foreign_partial_file_is_left_alone(tmp_path, content, flag):
    partial = partial_path(tmp_path / "out.jsonl")
    partial.write_bytes(content)
    with pytest.raises(UsageError, match="not a partial result file"):
        opened(tmp_path, **{flag: True})
    assert partial.read_bytes() == content


def test_only_a_torn_header_of_the_same_run_is_started_anew(tmp_path):
    opened(tmp_path).close()
    partial = partial_path(tmp_path / "out.jsonl")
    torn = partial.read_bytes()[:-10]
    for content in (torn, torn[:-1] + b"\n"):
        partial.write_bytes(content)
        with pytest.raises(UsageError, match="breaks off in its first line"):
            opened(tmp_path, resume=True, header={"engine": {"target": "u"}})
        assert partial.read_bytes() == content
    opened(tmp_path, overwrite=True).close()


def test_two_writers_of_one_output(tmp_path):
    first = opened(tmp_path)
    for flags in ({"resume": True}, {"overwrite": True}):
        with pytest.raises(UsageError, match="another process"):
            opened(tmp_path, **flags)
        # Before a model is loaded for it, too.
        with pytest.raises(UsageError, match="another process is writing"):
            check_output(tmp_path / "out.jsonl", **{"resume": False, "overwrite": False, **flags})
    with pytest.raises(UsageError, match="another process is writing"):
        check_output(tmp_path / "out.jsonl", resume=False, overwrite=False)
    first.append(0, record(0))
    assert first.num_done == 1
    first.close()


def test_an_unfinished_run_is_refused_with_both_ways_on(tmp_path):
    opened(tmp_path).close()
    with pytest.raises(UsageError, match="holds an unfinished run") as refused:
        check_output(tmp_path / "out.jsonl", resume=False, overwrite=False)
    assert "--resume" in refused.value.remedy and "--overwrite" in refused.value.remedy
    for flags in ({"resume": True, "overwrite": False}, {"resume": False, "overwrite": True}):
        check_output(tmp_path / "out.jsonl", **flags)
        opened(tmp_path, **flags).close()


def test_a_partial_file_that_something_else_cut_is_said_to_be(tmp_path):
    results = opened(tmp_path)
    results.append(0, record(0))
    partial_path(tmp_path / "out.jsonl").write_bytes(b"")
    with pytest.raises(EngineError, match="no longer holds the rows"):
        list(results.records())
    results.close()


def test_overwrite_keeps_the_old_output_until_the_new_one_is_whole(tmp_path):
    output = tmp_path / "out.jsonl"
    output.write_text("old\n")
    results = opened(tmp_path, overwrite=True)
    results.append(0, record(0, text="new"))
    assert output.read_text() == "old\n"
    assert not is_finished(output)
    publish(results)
    assert json.loads(output.read_text())["text"] == "new"


def test_a_link_stays_a_link(tmp_path):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "out.jsonl").symlink_to(tmp_path / "elsewhere" / "real.jsonl")
    opened(tmp_path, num_rows=0).close()
    with pytest.raises(UsageError, match="unfinished run"):
        check_output(tmp_path / "out.jsonl", resume=False, overwrite=False)
    publish(opened(tmp_path, num_rows=0, resume=True))
    assert (tmp_path / "out.jsonl").is_symlink()
    assert (tmp_path / "elsewhere" / "real.jsonl").read_text() == ""
    assert is_finished(tmp_path / "out.jsonl")


def test_a_failure_while_publishing_leaves_no_file(tmp_path):
    results = opened(tmp_path)
    results.append(0, record(0))

    def rows():
        yield b"{}"
        raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space"):
        results.publish(rows())
    results.close()
    assert [p.name for p in tmp_path.iterdir()] == ["out.jsonl.partial"]


def test_json_is_strict_and_one_line():
    for value in (float("nan"), float("inf")):
        with pytest.raises(ValueError, match="JSON compliant"):
            strict_json.dumps({"x": value})
    text = "a\u2028b\u0085c\ud800 é\n"
    content = strict_json.dumps({"x": text})
    assert len(content.decode("utf-8").splitlines()) == 1
    assert json.loads(content)["x"] == text
    assert strict_json.dumps("é") == '"é"'.encode()


@pytest.mark.parametrize("text", ["NaN", "-Infinity", "1e999", "[-1e400]", '{"a": 9' + "9" * 400 + ".0}"])
def test_numbers_that_no_float_holds_are_refused(text):
    with pytest.raises(ValueError, match=r"not JSON|too large") as refused:
        strict_json.loads(text)
    assert len(str(refused.value)) < 80
    assert strict_json.loads("[1e308, 1e-999]") == [1e308, 0.0]
