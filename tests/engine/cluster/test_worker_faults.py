"""Workers whose engines are fake: rows that end them, and what they refuse."""

from __future__ import annotations

import json
from contextlib import closing

import pytest
from fake_engine import CharCodec, NoProgress
from worker_engines import FATAL, WorkerEngine, load_mortal, load_nothing

from dspark.engine.config import EngineConfig
from dspark.engine.errors import CheckpointError, EngineError
from dspark.engine.jobs.decode_job import DecodeJob, decode_file
from dspark.engine.jobs.input_file import open_input
from dspark.engine.requests import Request, SamplingParams

pytest.importorskip("ray", reason="needs Ray: pip install 'dspark[ray]'")

from dspark.engine.cluster.cluster_engine import ClusterEngine
from dspark.engine.cluster.ledger import MOST_ATTEMPTS
from dspark.engine.cluster.row_server import DIED
from dspark.engine.cluster.workers import Workers


def test_what_a_worker_refuses_is_told_as_if_it_were_refused_here(ray_here):
    with pytest.raises(CheckpointError, match="there is no model") as refused:
        ClusterEngine(EngineConfig(), Workers(1), load=load_nothing)
    assert refused.value.remedy == "Bring one."


@pytest.fixture(scope="module")
def workers(ray_here):
    with closing(ClusterEngine(EngineConfig(concurrency=2), Workers(2), load=load_mortal)) as engine:
        yield engine


def requests(count):
    return [Request(index, [97 + index % 20] * (1 + index % 4)) for index in range(count)]


def test_a_row_that_ends_every_worker_becomes_an_error_and_no_other_row_does(workers):
    done = list(workers.generate(requests(40)))
    assert sorted(completion.index for completion in done) == list(range(40))
    expected = {completion.index: completion for completion in WorkerEngine().generate(requests(40))}
    errors = {completion.index: completion.error for completion in done if completion.error}
    assert errors == {FATAL: DIED}
    assert all(completion == expected[completion.index] for completion in done if completion.index != FATAL)
    # Three workers died of it: with all others, again, and alone.
    assert len(workers.process_ids()) == 2 + MOST_ATTEMPTS


def test_requests_are_pulled_as_workers_have_room(workers):
    pulled = []

    def endless():
        while True:
            pulled.append(1)
            yield Request(1000 + len(pulled), [97])

    completions = workers.generate(endless())
    for number in range(1, 60):
        next(completions)
        # Each has two batches of two rows, and two blocks of one row are on the way to it.
        assert len(pulled) <= number + 2 * (4 + 2)
    completions.close()
    # What nobody waited for is not taken for an answer to what is asked next.
    assert [completion.index for completion in workers.generate([Request(3, [98])])] == [3]


def test_later_turns_go_to_the_same_workers(tmp_path, workers):
    source = tmp_path / "in.jsonl"
    source.write_text('{"turns": ["a", "b"]}\n{"prompt": "c"}\n')
    job = DecodeJob(open_input(str(source)), tmp_path / "o", tmp_path / "m", SamplingParams(), all_turns=True)
    before = workers.process_ids()
    decode_file(workers, CharCodec(), job, NoProgress())
    rows = [json.loads(line) for line in job.output.read_text().splitlines()]
    assert len(rows[0]["turns"]) == 2 and rows[1]["text"] == "C"
    assert workers.process_ids() == before


def test_a_ledger_that_dies_ends_the_run_with_a_sentence(workers):
    import ray

    ray.kill(workers._pipeline._ledger)
    with pytest.raises(EngineError, match="the workers ended") as ended:
        list(workers.generate(requests(4)))
    assert "--resume" in ended.value.remedy
