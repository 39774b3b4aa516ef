"""Two workers over Ray give what one engine gives, also when one of them is killed."""

from __future__ import annotations

import json
import os
import signal
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from fake_engine import NoProgress
from fixture_engine import FIXTURES, make_engine

from dspark.calibration import read_traces, traces_to_frame
from dspark.engine.config import EngineConfig
from dspark.engine.jobs.decode_job import DecodeJob, decode_file
from dspark.engine.jobs.input_file import open_input
from dspark.engine.jobs.trace_file import TraceFile
from dspark.engine.requests import SamplingParams
from dspark.engine.training.generate import TextBudget, write_texts
from dspark.engine.training.text_file import read_texts
from dspark.engine.training.text_source import TextSource, Turns

pytest.importorskip("ray", reason="needs Ray: pip install 'dspark[ray]'")

from dspark.engine.cluster.cluster_engine import ClusterEngine
from dspark.engine.cluster.workers import Workers

ROWS, KILLED_AFTER = 120, 15
PAIR = FIXTURES / "dspark_rnn"
SETTINGS = {"acceptance": "coupled", "concurrency": 4, "policy": "fixed:7", "seed": 11}


@pytest.fixture(scope="module")
def pair_workers(ray_here):
    config = EngineConfig(
        target=str(PAIR / "target"), drafter=str(PAIR / "draft"), device="cpu", dtype="float32", **SETTINGS
    )
    with closing(ClusterEngine(config, Workers(2))) as workers:
        yield workers


@pytest.fixture(scope="module")
def one_engine():
    return make_engine("dspark_rnn", page_size=16, **SETTINGS)


def make_job(folder: Path, **changes) -> DecodeJob:
    folder.mkdir(exist_ok=True)
    rng = np.random.default_rng(3)
    with (folder / "in.jsonl").open("w") as file:
        for i in range(ROWS):
            row = {"prompt_token_ids": rng.integers(3, 255, rng.integers(1, 12)).tolist()}
            # Seeds of rows that bring none follow from the place in the file, whoever decodes them.
            row |= {"temperature": [0, 1, 0.7][i % 3]} | ({"seed": i} if i % 5 == 0 else {})
            file.write(json.dumps(row | ({"n": 2} if i == 9 else {})) + "\n")
    source = open_input(str(folder / "in.jsonl"))
    job = DecodeJob(source, folder / "out.jsonl", folder / "metrics.json", SamplingParams(max_tokens=24))
    return replace(job, **changes)


class Killer(NoProgress):
    """Kills the first worker once some rows are done."""

    def __init__(self, workers: ClusterEngine) -> None:
        self.workers = workers
        self.killed = 0

    def row_done(self, meter):
        if meter.summary.whole_file.rows >= KILLED_AFTER and not self.killed:
            self.killed = self.workers.process_ids()[0]
            os.kill(self.killed, signal.SIGKILL)


def test_a_killed_worker_is_replaced_and_the_files_are_those_of_one_engine(tmp_path, pair_workers, one_engine):
    def decode(engine, name, progress):
        traces = TraceFile(tmp_path / f"{name}.parquet", "t", "d")
        job = make_job(tmp_path / name, traces=traces)
        decode_file(engine, None, job, progress)
        return job.output.read_bytes(), traces_to_frame(read_traces([traces.path])), json.loads(job.metrics.read_text())

    assert pair_workers.fingerprint() == one_engine.fingerprint()
    killer = Killer(pair_workers)
    rows, traces, metrics = decode(pair_workers, "many", killer)
    expected_rows, expected_traces, _ = decode(one_engine, "one", NoProgress())
    assert rows == expected_rows
    assert rows.count(b"\n") == ROWS and rows.count(b'"finish_reason": "error"') == 1
    # Every round once; logits depend on who else is in the batch, to a rounding.
    exact = [name for name in traces if traces[name].dtype != np.float32]
    pd.testing.assert_frame_equal(traces[exact], expected_traces[exact])
    # Some signals are at hand only where the whole batch is sampled.
    logits = [name for name in traces if name.startswith("confidence_logit")]
    assert logits
    both = traces.notna() & expected_traces.notna()
    for kept in (traces[logits], expected_traces[logits]), (traces.where(both), expected_traces.where(both)):
        pd.testing.assert_frame_equal(*kept, rtol=0, atol=1e-4)
    assert metrics["manifest"]["workers"] == 2
    processes = pair_workers.process_ids()
    assert killer.killed in processes and len(set(processes)) == 3


def test_texts_to_train_on_are_those_of_one_engine(tmp_path, pair_workers, one_engine):
    def texts(engine, name):
        def source(done):
            return TextSource(
                [],
                Turns([5, 6], []),
                temperatures=(1.0, 0.0),
                max_tokens=12,
                row_tokens=64,
                stop_ids=engine.stop_ids,
                seed=3,
                done=done,
            )

        path, budget = tmp_path / name, TextBudget(None, 300)
        write_texts(engine, source, path, budget=budget, resume=False, report=lambda progress: None)
        return {text.index: text.token_ids for text in read_texts(path)}

    many, one = texts(pair_workers, "many"), texts(one_engine, "one")
    both = many.keys() & one.keys()
    assert len(both) >= 10
    assert {index: many[index] for index in both} == {index: one[index] for index in both}
