"""An output that is whole: only the very run that made it has nothing left to do."""

import json
from dataclasses import replace

import pytest
from fake_engine import CharCodec, FakeEngine, NoProgress

from dspark.engine.errors import UsageError
from dspark.engine.jobs.decode_job import DecodeJob, decode_file
from dspark.engine.jobs.finished import finished_summary
from dspark.engine.jobs.input_file import open_input
from dspark.engine.requests import SamplingParams

KNOWN = {"target": "fake", "policy": "fixed:3"}


@pytest.fixture
def job(tmp_path):
    (tmp_path / "in.jsonl").write_text('{"turns": ["a", "b"]}\n{"prompt": ""}\n')
    source = open_input(str(tmp_path / "in.jsonl"))
    return DecodeJob(source, tmp_path / "out.jsonl", tmp_path / "m.json", SamplingParams(stop=("x",)), all_turns=True)


def test_its_totals_are_those_of_the_run(job):
    totals = decode_file(FakeEngine(), CharCodec(), job, NoProgress()).to_dict()
    assert finished_summary(replace(job, resume=True), KNOWN) == totals
    assert totals["finish_reasons"]["error"] == 1


DIFFERENT = {
    "sampling": ({"sampling": SamplingParams(stop=("y",))}, {}, r'in --stop \(\["x"\] then, \["y"\] now\)'),
    "turns": ({"all_turns": False}, {}, "in --all-turns"),
    "token ids": ({"token_ids": True}, {}, "in --token-ids"),
    "target": ({}, {"target": "other"}, r'in --target \("fake" then, "other" now\)'),
    "a setting it did not have": ({}, {"seed": 3}, r"in --seed \(null then, 3 now\)"),
}


@pytest.mark.parametrize(("change", "known", "name"), DIFFERENT.values(), ids=DIFFERENT)
def test_another_run_is_refused_by_name(job, change, known, name):
    decode_file(FakeEngine(), CharCodec(), job, NoProgress())
    with pytest.raises(UsageError, match=name) as refused:
        finished_summary(replace(job, **change), {**KNOWN, **known})
    assert "--overwrite" in refused.value.remedy


def test_another_input_and_another_output_are_refused(job):
    decode_file(FakeEngine(), CharCodec(), job, NoProgress())
    job.output.write_text("{}\n")
    with pytest.raises(UsageError, match="has 1 rows, the input has 2"):
        finished_summary(job, KNOWN)
    source = job.output.with_name("in.jsonl")
    source.write_text('{"turns": ["a", "c"]}\n{"prompt": ""}\n')
    with pytest.raises(UsageError, match="in the content of --input"):
        finished_summary(replace(job, input=open_input(str(source))), KNOWN)


@pytest.mark.parametrize("content", [None, "", "[]", "{", '{"rows": 2}', '{"run": {"engine": {}}}'])
def test_without_its_metrics_nothing_is_known(job, content):
    decode_file(FakeEngine(), CharCodec(), job, NoProgress())
    if content is None:
        job.metrics.unlink()
    else:
        job.metrics.write_text(content)
    with pytest.raises(UsageError, match=r"m\.json does not say by what run"):
        finished_summary(job, KNOWN)


def test_metrics_of_another_run_do_not_count(job):
    decode_file(FakeEngine(), CharCodec(), job, NoProgress())
    metrics = json.loads(job.metrics.read_text())
    metrics["run"]["input"]["rows"] = 3
    job.metrics.write_text(json.dumps(metrics))
    with pytest.raises(UsageError, match=r"in the number of rows in --input \(3 then, 2 now\)"):
        finished_summary(job, KNOWN)
