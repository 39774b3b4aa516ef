import json
import shutil
from dataclasses import replace

import pytest
from fake_engine import CharCodec, FakeEngine, NoProgress

from dspark.engine.errors import EngineError, UsageError
from dspark.engine.jobs.decode_job import DecodeJob, decode_file
from dspark.engine.jobs.input_file import open_input
from dspark.engine.requests import SamplingParams

ROWS = [
    {"prompt": "one", "custom_id": "a"},
    {"prompt_token_ids": [120, 121], "max_tokens": 2},
    {"prompt": ""},
    {"prompt": "x" * 6000},
    {"messages": [{"role": "user", "content": "hi"}], "temperature": 0.5, "seed": 9, "stop": ["z"]},
    {"prompt": "p", "top_p": 0},
    {"prompt": "last"},
]


def make_job(folder, rows=ROWS, **changes):
    source = folder / "in.jsonl"
    source.write_text("".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows))
    job = DecodeJob(open_input(str(source)), folder / "out.jsonl", folder / "metrics.json", SamplingParams())
    return replace(job, **changes)


def decode(job, engine=None, codec=CharCodec):
    summary = decode_file(engine or FakeEngine(), codec() if codec else None, job, NoProgress())
    return summary, [json.loads(line) for line in job.output.read_text().splitlines()]


def test_one_row_out_for_each_row_in_and_in_order(tmp_path):
    engine = FakeEngine()
    summary, rows = decode(make_job(tmp_path), engine)
    assert [row["index"] for row in rows] == list(range(7))
    assert rows[0] == {
        "index": 0,
        "custom_id": "a",
        "text": "ONE",
        "finish_reason": "stop",
        "usage": {"prompt_tokens": 3, "completion_tokens": 4},
        "spec": {"rounds": 3, "drafted": 9, "verified": 9, "accepted": 0, "acceptance_histogram": [3, 0, 0, 0]},
        "error": None,
    }
    assert (rows[1]["text"], rows[1]["finish_reason"], rows[1]["token_ids"]) == ("XY", "length", [88, 89])
    assert [row["error"] for row in rows if row["finish_reason"] == "error"] == [
        "line 3: the prompt is empty after tokenising. Give a text of at least one token.",
        "line 4: the prompt is too long",
        "line 6: top_p is 0. Give a number above 0 and up to 1 (1 = off).",
    ]
    assert all("token_ids" not in row for row in rows if row["index"] != 1)
    total = summary.whole_file
    assert (total.stop, total.length, total.error) == (3, 1, 3)
    asked = {request.index: request.sampling for request in engine.asked}
    assert asked[4] == SamplingParams(temperature=0.5, seed=9, stop=("z",))


def test_metrics_are_strict_json_and_add_up(tmp_path):
    job = make_job(tmp_path)
    summary, rows = decode(job)
    metrics = json.loads(job.metrics.read_text(), parse_constant=pytest.fail)
    assert metrics["completion_tokens"] == sum(row["usage"]["completion_tokens"] for row in rows)
    assert metrics["spec"]["emitted"] == metrics["completion_tokens"] - 4
    assert metrics["spec"]["mean_acceptance_length"] == 1.0
    assert metrics["spec"]["observed"] == metrics["spec"]["rounds"]
    assert metrics["run"]["engine"] == FakeEngine().fingerprint()
    assert metrics["this_run"]["prefill_tokens"] == sum(row["usage"]["prompt_tokens"] for row in rows)
    assert metrics["this_run"]["tokens_per_s"] == summary.tokens_per_s > 0


def test_token_ids_on_request(tmp_path):
    _, rows = decode(make_job(tmp_path, token_ids=True))
    assert rows[0]["token_ids"] == [79, 78, 69, 0]


def test_without_a_tokenizer_token_ids_are_still_answered(tmp_path):
    _, rows = decode(make_job(tmp_path), codec=None)
    assert (rows[1]["text"], rows[1]["token_ids"]) == (None, [88, 89])
    assert rows[0]["error"] == "line 1: the target has no tokenizer. Give `prompt_token_ids`."


def test_requests_are_pulled_as_the_engine_has_room(tmp_path):
    pulled = []

    class Watched(CharCodec):
        def encode(self, text):
            pulled.append(text)
            return super().encode(text)

    engine = FakeEngine(before=lambda index: open_now.append(len(pulled) - len(open_now)))
    open_now = []
    decode(make_job(tmp_path, [{"prompt": f"{i}"} for i in range(50)]), engine, Watched)
    assert max(open_now) <= engine.concurrency


def test_all_turns_are_asked_with_the_models_own_answers(tmp_path):
    rows_in = [{"turns": ["a", "b", "c"]}, {"prompt": "q"}, {"turns": ["d"]}, {"turns": ["e", "f"]}]
    engine = FakeEngine()
    summary, rows = decode(make_job(tmp_path, rows_in, all_turns=True), engine)
    first = "<USER>A<ASSISTANT>"
    second = f"<USER>A<ASSISTANT>{first}<USER>B<ASSISTANT>"
    assert rows[0]["turns"][:2] == [first, second]
    assert rows[0]["text"] == rows[0]["turns"][2]
    assert rows[0]["usage"]["completion_tokens"] == sum(len(turn) + 1 for turn in rows[0]["turns"])
    assert [len(row.get("turns", [])) for row in rows] == [3, 0, 0, 2]
    assert summary.whole_file.spec.emitted == summary.whole_file.completion_tokens - 7


def test_a_later_turn_that_is_too_long_is_an_error_row(tmp_path):
    too_long = [{"turns": ["a" * 4900, "b"]}, {"turns": ["a", "a" * 3000, "a" * 3000]}, {"turns": ["a" * 5000, "b"]}]
    _, rows = decode(make_job(tmp_path, too_long, all_turns=True))
    assert [row["error"] for row in rows] == [
        "line 1: turn 2: the prompt is too long",
        "line 2: turn 3: the prompt is too long",
        "line 3: the prompt is too long",
    ]
    assert [len(row["turns"]) for row in rows] == [1, 2, 0]


@pytest.mark.parametrize("error", [KeyboardInterrupt, OSError, RuntimeError], ids=lambda e: e.__name__)
@pytest.mark.parametrize("at", range(7))
def test_interrupted_anywhere_and_resumed_gives_the_same_file(tmp_path, error, at):
    (tmp_path / "whole").mkdir()
    _, expected = decode(make_job(tmp_path / "whole"))

    def stop(index):
        if len(engine.asked) > at:
            raise error

    engine = FakeEngine(before=stop)
    job = make_job(tmp_path)
    try:
        decode(job, engine)
    except error:
        assert not job.output.exists()
    resumed_engine = FakeEngine()
    finished = job.output.exists()
    summary, rows = decode(make_job(tmp_path, resume=not finished, overwrite=finished), resumed_engine)
    assert rows == expected
    assert summary.whole_file.rows == 7
    assert len(resumed_engine.asked) + summary.resumed_rows <= 7
    assert not job.output.with_name("out.jsonl.partial").exists()


@pytest.mark.parametrize(
    ("change", "name"),
    [
        ({"sampling": SamplingParams(temperature=0.3)}, r"--temperature \(0.0 then, 0.3 now\)"),
        ({"token_ids": True}, r"--token-ids \(false then, true now\)"),
        ({"rows": ROWS[:-1]}, r"the number of rows in --input \(7 then, 6 now\); the content of --input"),
        ({"identity": "other"}, r'--target \("fake" then, "other" now\)'),
    ],
    ids=["sampling", "token ids", "input", "target"],
)
def test_a_different_run_is_not_resumed(tmp_path, change, name):
    with pytest.raises(KeyboardInterrupt):
        decode(make_job(tmp_path), FakeEngine(before=lambda index: (_ for _ in ()).throw(KeyboardInterrupt)))
    changes = dict(change)
    engine = FakeEngine(identity=changes.pop("identity", "fake"))
    with pytest.raises(UsageError, match=name):
        decode(make_job(tmp_path, changes.pop("rows", ROWS), resume=True, **changes), engine)


def test_killed_between_publishing_and_the_last_step(tmp_path, monkeypatch):
    from dspark.engine.jobs.results import ResultFile

    def killed(self):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(ResultFile, "discard_partial", killed)
        decode(make_job(tmp_path))
    engine = FakeEngine()
    summary, rows = decode(make_job(tmp_path, resume=True), engine)
    assert (len(rows), summary.resumed_rows, engine.asked) == (7, 7, [])


@pytest.mark.parametrize(
    ("option", "name"),
    [
        ("output", "in.jsonl"),
        ("output", "in"),
        ("output", "hard"),
        ("output", "soft"),
        ("metrics", "in.jsonl"),
        ("metrics", "out.jsonl"),
        ("metrics", "out.jsonl.partial"),
    ],
)
def test_files_in_each_others_way_are_refused(tmp_path, option, name):
    (tmp_path / "in.jsonl").touch()
    (tmp_path / "in.partial").symlink_to(tmp_path / "in.jsonl")
    (tmp_path / "hard").hardlink_to(tmp_path / "in.jsonl")
    (tmp_path / "soft").symlink_to(tmp_path / "in.jsonl")
    before = (tmp_path / "in.jsonl").read_bytes()
    with pytest.raises(UsageError, match=f"--{option}") as refused:
        make_job(tmp_path, rows=[], **{option: tmp_path / name})
    assert refused.value.remedy
    assert (tmp_path / "in.jsonl").read_bytes() == before


def rewriting_engine(path, content, *, at):
    """Gives the input file another content while row `at` is decoded."""
    return FakeEngine(concurrency=1, before=lambda index: index == at and path.write_bytes(content))


@pytest.mark.parametrize(
    "change",
    [lambda b: b.replace(b'"p9999"', b'"q9999"'), lambda b: b[: len(b) // 2], lambda b: b""],
    ids=["a row", "shorter", "emptied"],
)
def test_an_input_that_changes_is_an_error_and_what_was_done_is_kept(tmp_path, change):
    job = make_job(tmp_path, [{"prompt": f"p{i}"} for i in range(20_000)])
    source = tmp_path / "in.jsonl"
    content = source.read_bytes()
    with pytest.raises(EngineError, match=r"in\.jsonl has changed from line \d+ on") as refused:
        decode(job, rewriting_engine(source, change(content), at=3))
    assert "--resume" in refused.value.remedy
    assert not job.output.exists()
    source.write_bytes(content)
    summary, rows = decode(replace(job, input=open_input(str(source)), resume=True))
    assert summary.resumed_rows > 3
    assert [row["text"] for row in rows] == [f"P{i}" for i in range(20_000)]


def test_an_input_that_grows_is_decoded_as_it_was(tmp_path):
    job = make_job(tmp_path, [{"prompt": f"p{i}"} for i in range(5)])
    source = tmp_path / "in.jsonl"
    _, rows = decode(job, rewriting_engine(source, source.read_bytes() + b'{"prompt": "late"}\n', at=0))
    assert [row["text"] for row in rows] == ["P0", "P1", "P2", "P3", "P4"]


def removing_engine(folder, then=id, *, at=3):
    """Has somebody remove a folder while row `at` is decoded."""

    def remove(index):
        if index == at:
            shutil.rmtree(folder)
            then(folder)

    return FakeEngine(concurrency=1, before=remove)


@pytest.fixture
def elsewhere(tmp_path):
    """A job whose results go to a folder of their own, and the rows that it gives."""
    (tmp_path / "whole").mkdir()
    _, expected = decode(make_job(tmp_path / "whole"))
    (tmp_path / "work").mkdir()
    places = {"output": tmp_path / "work" / "out.jsonl", "metrics": tmp_path / "work" / "metrics.json"}
    return make_job(tmp_path, **places), expected


def test_a_work_directory_that_is_removed_meanwhile_is_made_again(elsewhere):
    job, expected = elsewhere
    _, rows = decode(job, removing_engine(job.output.parent))
    assert rows == expected
    assert sorted(path.name for path in job.output.parent.iterdir()) == ["metrics.json", "out.jsonl"]


def test_what_cannot_be_made_again_is_said_to_be_lost(elsewhere):
    job, _ = elsewhere
    with pytest.raises(EngineError, match=r"out\.jsonl cannot be written .*, and .*partial was removed") as refused:
        decode(job, removing_engine(job.output.parent, lambda folder: folder.touch()))
    assert refused.value.remedy == "Nothing is left to resume: decode the file again."


def test_a_run_that_was_begun_in_the_place_of_a_removed_one_is_left_alone(elsewhere):
    job, expected = elsewhere
    partial = job.output.with_name("out.jsonl.partial")

    def begin(folder):
        folder.mkdir()
        partial.write_text("another run's")

    _, rows = decode(job, removing_engine(job.output.parent, begin))
    assert rows == expected
    assert partial.read_text() == "another run's"


def test_a_prompt_of_10_mb_is_one_row_among_others(tmp_path):
    _, rows = decode(make_job(tmp_path, [{"prompt": "a"}, {"prompt": "x" * 10_000_000}, {"prompt": "b"}]))
    assert [(row["text"], row["error"]) for row in rows] == [
        ("A", None),
        (None, "line 2: the prompt is too long"),
        ("B", None),
    ]


def test_no_rows_give_an_empty_file(tmp_path):
    summary, rows = decode(make_job(tmp_path, []))
    assert (rows, summary.num_rows) == ([], 0)
