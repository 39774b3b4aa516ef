"""Rounds of a job's rows: each is in the trace file once, whatever stopped the run."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from fake_engine import CharCodec, NoProgress
from traced_engine import TracedEngine

from dspark.calibration import Provenance, read_traces, traces_to_frame
from dspark.engine.errors import EngineError, UsageError
from dspark.engine.jobs.decode_job import DecodeJob, decode_file
from dspark.engine.jobs.input_file import open_input
from dspark.engine.jobs.round_records import RoundRecorder, pack, unpack
from dspark.engine.jobs.row_traces import RowTraces
from dspark.engine.jobs.trace_file import TraceFile
from dspark.engine.jobs.trace_job import record_rows
from dspark.engine.observation import ObservedRound
from dspark.engine.requests import SamplingParams

ROWS = [
    {"prompt": "one", "dataset": "maths"},
    {"prompt": "four", "temperature": 0.5, "top_k": 4, "top_p": 0.75},
    {"prompt": ""},
    {"prompt": "x" * 6000},
    {"turns": ["ab", "c"], "dataset": 7},
    {"prompt": "seven", "dataset": "a\ud800"},
]


def make_job(folder: Path, **changes: Any) -> DecodeJob:
    source = folder / "mixed.rows.jsonl"
    source.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    traces = TraceFile(folder / "t.parquet", "big", "small")
    job = DecodeJob(
        open_input(str(source)), folder / "out.jsonl", folder / "m.json", SamplingParams(), traces, all_turns=True
    )
    return replace(job, **changes)


def decode(job: DecodeJob, engine: TracedEngine | None = None) -> list[dict[str, Any]]:
    decode_file(engine or TracedEngine(), CharCodec(), job, NoProgress())
    return [json.loads(line) for line in job.output.read_text().splitlines()]


def frame(path: Path) -> pd.DataFrame:
    return traces_to_frame(read_traces([path]))


def test_every_round_of_every_row_is_one_row_of_the_traces(tmp_path: Path) -> None:
    rows = decode(make_job(tmp_path))
    traces = read_traces([tmp_path / "t.parquet"])
    counted = {row["index"]: row["spec"]["rounds"] for row in rows if row["spec"]["rounds"]}
    assert sorted(counted) == [0, 1, 4, 5]
    np.testing.assert_array_equal(traces.request, np.repeat(list(counted), list(counted.values())))
    np.testing.assert_array_equal(traces.round, np.concatenate([np.arange(n) for n in counted.values()]))
    assert traces.provenance == Provenance("big", "small", "rejection", "fake", "d1", draft_top_k=0)
    assert traces.policy.names == ("fixed:3",)
    mine = traces.select(traces.request == 1)
    assert mine.confidence_logits.tolist() == [[4, j, 1] for j in range(4)]
    assert mine.text_position.tolist() == [4, 5, 6, 7]
    assert {*mine.temperature.tolist(), *mine.top_k.tolist(), *mine.top_p.tolist()} == {0.5, 4, 0.75}
    np.testing.assert_array_equal(mine.signals["draft_margin"], [[0.25, 0.5, np.nan]] * 4)
    assert set(traces.signals) == {"draft_margin"}


def test_rows_are_of_the_data_set_that_they_name_or_of_the_file(tmp_path: Path) -> None:
    decode(make_job(tmp_path))
    traces = frame(tmp_path / "t.parquet")
    assert traces.groupby("request")["dataset"].first().to_dict() == {0: "maths", 1: "mixed", 4: "mixed", 5: "mixed"}


@pytest.mark.parametrize("stop_at", range(6))
def test_a_killed_run_that_is_resumed_has_every_round_once(tmp_path: Path, stop_at: int) -> None:
    """The engine gives up before one of its answers; what was answered until then is not asked again."""

    class Killed(Exception):
        pass

    (tmp_path / "whole").mkdir()
    decode(make_job(tmp_path / "whole"))
    answered: list[int] = []

    def kill(index: int) -> None:
        if len(answered) == stop_at:
            raise Killed
        answered.append(index)

    with pytest.raises(Killed):
        decode(make_job(tmp_path), TracedEngine(before=kill))
    assert not (tmp_path / "t.parquet").exists()
    decode(make_job(tmp_path, resume=True))
    pd.testing.assert_frame_equal(frame(tmp_path / "t.parquet"), frame(tmp_path / "whole" / "t.parquet"))


def test_rounds_of_an_unfinished_dialogue_are_not_kept_twice(tmp_path: Path) -> None:
    """Killed between two turns of one row: the row begins anew, and so do its rounds."""
    (tmp_path / "whole").mkdir()
    decode(make_job(tmp_path / "whole"))
    turns: list[int] = []

    def kill(index: int) -> None:
        turns.append(index)
        if turns.count(4) == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        decode(make_job(tmp_path), TracedEngine(before=kill))
    decode(make_job(tmp_path, resume=True))
    pd.testing.assert_frame_equal(frame(tmp_path / "t.parquet"), frame(tmp_path / "whole" / "t.parquet"))


@pytest.mark.parametrize("first", [True, False], ids=["recorded before", "recorded now"])
def test_a_run_is_not_resumed_with_half_of_its_rounds(tmp_path: Path, first: bool) -> None:
    def kill(index: int) -> None:
        raise KeyboardInterrupt

    traced, untraced = make_job(tmp_path), make_job(tmp_path, traces=None)
    with pytest.raises(KeyboardInterrupt):
        decode(traced if first else untraced, TracedEngine(before=kill))
    with pytest.raises(UsageError, match="traces"):
        decode(replace(untraced if first else traced, resume=True))


@pytest.mark.parametrize("rounds", ["A", "AAAA", "\u00e9"], ids=["no base64", "half a round", "no ASCII"])
def test_rounds_that_something_else_changed_are_refused_by_their_row(tmp_path: Path, rounds: str) -> None:
    def kill(index: int) -> None:
        if index == 4:
            raise KeyboardInterrupt

    job = make_job(tmp_path)
    with pytest.raises(KeyboardInterrupt):
        decode(job, TracedEngine(before=kill))
    partial = tmp_path / "out.jsonl.partial"
    header, *lines = map(json.loads, partial.read_text().splitlines())
    lines[0]["trace"]["rounds"] = rounds
    partial.write_text("".join(json.dumps(line) + "\n" for line in (header, *lines)))
    with pytest.raises(EngineError, match=f"row {lines[0]['index']} of the partial result has rounds") as refused:
        decode(replace(job, resume=True))
    assert "--overwrite" in refused.value.remedy


def test_without_traces_nothing_is_observed(tmp_path: Path) -> None:
    class Unobservable(TracedEngine):
        @property
        def observer(self) -> None:
            return None

    decode(make_job(tmp_path, traces=None), Unobservable())
    assert not (tmp_path / "t.parquet").exists()


@pytest.mark.parametrize(
    ("taken_by", "sentence"),
    [
        ("input", "--traces is the input file"),
        ("output", "--traces is .*t.parquet, which belongs to --output"),
        ("metrics", "--traces is .*t.parquet, which is for the metrics"),
    ],
)
def test_traces_take_nobodys_place(tmp_path: Path, taken_by: str, sentence: str) -> None:
    place = tmp_path / "t.parquet"
    place.write_text('{"prompt": "one"}\n')
    taken = open_input(str(place)) if taken_by == "input" else place
    with pytest.raises(UsageError, match=sentence):
        make_job(tmp_path, **{taken_by: taken})


def test_other_endings_are_refused() -> None:
    with pytest.raises(UsageError, match="no ending of a trace file") as caught:
        TraceFile(Path("t.jsonl"), "big", "small")
    assert caught.value.remedy == "Use .parquet or .csv."


def test_rows_decoded_for_their_rounds_alone(tmp_path: Path) -> None:
    job = make_job(tmp_path)
    engine = TracedEngine()
    traces = RowTraces(engine, job.traces, dataset="mixed")
    summary = record_rows(engine, CharCodec(), job.input, job.sampling, traces=traces, progress=NoProgress())
    assert [error.split(":")[0] for _, error in summary.first_errors] == ["line 3", "line 4"]
    decode(replace(job, all_turns=False))
    pd.testing.assert_frame_equal(traces_to_frame(traces.collected()), frame(tmp_path / "t.parquet"))
    assert engine.observer is None


def test_rounds_survive_an_interrupt(tmp_path: Path) -> None:
    def kill(index: int) -> None:
        if index == 4:
            raise KeyboardInterrupt

    job = make_job(tmp_path)
    engine = TracedEngine(before=kill, concurrency=1)
    traces = RowTraces(engine, job.traces, dataset="mixed")
    with pytest.raises(KeyboardInterrupt):
        record_rows(engine, CharCodec(), job.input, job.sampling, traces=traces, progress=NoProgress())
    assert sorted(set(traces.collected().request.tolist())) == [0, 1]


def test_records_of_several_requests_a_round_are_told_apart() -> None:
    recorder = RoundRecorder(4)
    rng = np.random.default_rng(0)
    logits = rng.normal(size=(5, 3, 2)).astype(np.float32)
    for j, requests in enumerate([[7, 3, 5], [7, 5], [3, 9, 7], [9], [3, 7]]):
        count = np.arange(len(requests)) + j
        recorder(
            ObservedRound(
                request=np.array(requests),
                text_position=10 * np.array(requests) + j,
                drafted=np.full(len(requests), 2),
                verified=count % 3,
                observed=count % 2,
                accepted=count * 0,
                confidence_logits=logits[j, : len(requests)],
                temperature=np.zeros(len(requests), dtype=np.float32),
                top_k=count * 0,
                top_p=np.ones(len(requests), dtype=np.float32),
                signals={},
            )
        )
    seven = unpack(pack(recorder.take(7)), 4)
    assert seven["text_position"].tolist() == [70, 71, 72, 74]
    assert seven["verified"].tolist() == [0, 1, 1, 2]
    expected = np.full((4, 4), np.nan, dtype=np.float32)
    expected[:, :2] = [logits[0, 0], logits[1, 0], logits[2, 2], logits[4, 1]]
    np.testing.assert_array_equal(seven["confidence_logits"], expected)
    assert np.isnan(seven["oracle_acceptance"]).all()
    assert sorted(recorder.requests()) == [3, 5, 9]
    assert len(recorder.take(7)) == 0
