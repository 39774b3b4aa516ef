"""What is seen while rows are decoded, in a log file and on a terminal."""

import re
import threading
from io import StringIO

import pytest
from rich.console import Console

from dspark.cli.decode_progress import DecodeReporter, LiveDecodeReporter
from dspark.cli.output import Sink
from dspark.engine.jobs.meter import Meter
from dspark.engine.jobs.summary import DecodeSummary, Totals
from dspark.engine.requests import SpecCounts


def plain(console):
    return re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", console.file.getvalue())


class Engine:
    """Stands in the middle of its first rows."""

    class stats:
        emitted = 0

    def generate(self, requests):
        self.stats = type("Stats", (), {"emitted": 1234, "prefill_tokens": 0, "preemptions": 0})
        yield from requests


@pytest.fixture
def meter():
    """Four rows, of which one was done before and none of this run's."""
    times = iter([0.0, *[2.0] * 10_000])
    meter = Meter(Engine(), DecodeSummary(4), clock=lambda: next(times))
    meter.summary.whole_file = Totals(rows=1, stop=1, completion_tokens=50, spec=SpecCounts(rounds=9, emitted=49))
    next(meter.generate([None]))
    return meter


def test_a_log_file_gets_a_line_now_and_then_before_any_row_is_done(meter):
    lines, two_more = [], threading.Event()

    def note(line):
        lines.append(line)
        if len(lines) == 3:
            two_more.set()

    with DecodeReporter(note, every_s=0.01) as reporter:
        reporter.begin(meter)
        assert two_more.wait(10)
    assert lines[0] == "Decoding 4 rows, 1 of them done before"
    assert lines[1] == lines[2] == "1 of 4 rows done, 1,234 tokens, 617 tok/s"
    # Closed, it leaves no thread.
    assert not [thread for thread in threading.enumerate() if thread.name.endswith("(_tick)")]


def test_the_line_ends_with_the_time_left_once_a_row_is_done(meter):
    reporter = DecodeReporter()
    reporter.begin(meter)
    meter.summary.this_run = Totals(rows=1, stop=1, completion_tokens=24_681, spec=SpecCounts(emitted=1233))
    meter.summary.whole_file += meter.summary.this_run
    # 3 rows of 24,681 tokens, of which 24,682 are written, in 2 s.
    assert reporter.standing() == "2 of 4 rows done, 24,682 tokens, 12,341 tok/s, 0:04 left"


def test_rows_that_finish_at_once_add_no_lines(meter):
    lines = []
    with DecodeReporter(lines.append) as reporter:
        reporter.begin(meter)
        for _ in range(100):
            reporter.row_done(meter)
    assert lines == ["Decoding 4 rows, 1 of them done before"]


def test_quiet_tells_nothing_and_starts_no_thread(meter, capsys):
    threads = threading.active_count()
    with Sink(json=False, quiet=True).decode_progress() as reporter:
        reporter.step("Starting")
        reporter.begin(meter)
        assert threading.active_count() == threads
        reporter.row_done(meter)
    captured = capsys.readouterr()
    assert captured.out == captured.err == ""


def test_the_bar_shows_tokens_and_speed_before_the_first_row_is_done(meter):
    console = Console(file=StringIO(), force_terminal=True, width=120)
    with LiveDecodeReporter(console) as reporter:
        reporter.step("Fetching", 1, 2)
        reporter.begin(meter)
        console.print(reporter._bar.get_renderable())
        before = plain(console)
        meter.summary.this_run = Totals(rows=1, stop=1, completion_tokens=11, spec=SpecCounts(rounds=4, emitted=10))
        meter.summary.whole_file += meter.summary.this_run
        reporter.row_done(meter)
        console.print(reporter._bar.get_renderable())
    assert "1/4 1,234 tokens, 617 tok/s" in before
    assert "2/4 1,235 tokens, 618 tok/s, 2.50 a round" in plain(console)


def test_the_bar_of_a_large_job_fits_on_a_narrow_terminal(meter):
    meter.summary.num_rows = 20_000
    totals = Totals(rows=9_999, stop=9_999, completion_tokens=9_876_543, spec=SpecCounts(rounds=4, emitted=10))
    meter.summary.whole_file = meter.summary.this_run = totals
    console = Console(file=StringIO(), force_terminal=True, width=80)
    with LiveDecodeReporter(console) as reporter:
        reporter.begin(meter)
        console.print(reporter._bar.get_renderable())
        shown = plain(console)
    assert "tokens, 4,938,884 tok/s, 2.50 a round" in shown
    assert "9999/20000 " in shown
