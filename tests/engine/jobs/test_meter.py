"""A meter counts tokens of running rows too, over all runs of the engine, and no token twice."""

from dataclasses import dataclass

from fake_engine import CharCodec, FakeEngine

from dspark.engine.jobs.decode_job import DecodeJob, decode_file
from dspark.engine.jobs.input_file import open_input
from dspark.engine.jobs.meter import Meter
from dspark.engine.jobs.summary import DecodeSummary, Totals
from dspark.engine.requests import SamplingParams, SpecCounts


class Watcher:
    """Reads the meter whenever it is told of a row, and when the engine is about to answer."""

    def __init__(self):
        self.meter, self.seen = None, []

    def begin(self, meter):
        self.meter = meter

    def row_done(self, meter):
        self.seen.append(meter.tokens)

    def look(self, index):
        self.seen.append(self.meter.tokens)


def test_it_never_falls_and_ends_at_the_tokens_of_the_run(tmp_path):
    (tmp_path / "in.jsonl").write_text('{"turns": ["a", "bc", "def"]}\n{"prompt": "xyz"}\n{"turns": ["g", "h"]}\n')
    watcher = Watcher()
    engine = FakeEngine(before=watcher.look)
    job = DecodeJob(
        open_input(str(tmp_path / "in.jsonl")),
        tmp_path / "out.jsonl",
        tmp_path / "m.json",
        SamplingParams(),
        all_turns=True,
    )
    summary = decode_file(engine, CharCodec(), job, watcher)
    assert watcher.seen == sorted(watcher.seen)
    assert watcher.seen[-1] == watcher.meter.tokens == summary.this_run.completion_tokens
    # Turns were answered before their row was done, and seen.
    assert 0 < watcher.seen[1] < watcher.seen[-1]


@dataclass
class Stats:
    emitted: int = 0
    prefill_tokens: int = 0
    preemptions: int = 0


class Steps:
    """An engine whose progress is set by hand."""

    def __init__(self):
        self.stats = Stats(100)

    def generate(self, requests):
        self.stats = Stats()
        yield from requests


def test_a_row_that_runs_is_seen_before_it_is_done():
    engine, times = Steps(), iter([10.0, 12.0, 14.0])
    meter = Meter(engine, DecodeSummary(1), clock=lambda: next(times))
    # What another job decoded with this engine is not of this one.
    assert meter.tokens == 0
    run = meter.generate([1, 2])
    next(run)
    engine.stats.emitted = 8
    assert meter.tokens == 8
    assert meter.tokens_per_s == 8 / 2.0
    engine.stats.emitted = 9
    assert list(run) == [2]
    assert meter.tokens == 9
    assert meter.tokens_per_s == 9 / 4.0


def test_the_time_left_is_that_of_rows_as_long_as_those_that_are_done():
    engine, summary = Steps(), DecodeSummary(9, whole_file=Totals(rows=1, completion_tokens=500))
    meter = Meter(engine, summary, clock=iter([0.0, *[10.0] * 99]).__next__)
    run = meter.generate([1, 2])
    next(run)
    engine.stats.emitted = 70
    assert meter.left_s is None
    summary.this_run = Totals(rows=2, completion_tokens=42, spec=SpecCounts(emitted=40))
    summary.whole_file += summary.this_run
    # 8 rows of 21 tokens, of which 42 are done and 30 more are written, at 7.2 a second.
    assert meter.tokens == 72
    assert meter.left_s == (8 * 21 - 72) / 7.2
    engine.stats.emitted = 400
    assert meter.left_s == 0.0


def test_what_several_calls_prefilled_and_preempted_adds_up():
    engine, summary = Steps(), DecodeSummary(1)
    meter = Meter(engine, summary)
    for prefill_tokens, preemptions in ((70, 0), (30, 2)):
        run = meter.generate([1])
        next(run)
        engine.stats.prefill_tokens, engine.stats.preemptions = prefill_tokens, preemptions
        assert list(run) == []
    this_run = summary.to_dict()["this_run"]
    assert (this_run["prefill_tokens"], this_run["preemptions"]) == (100, 2)
