"""What a log file is told of a step that takes long."""

import threading

import pytest

from dspark.cli.output import Sink
from dspark.cli.profile_progress import ProfileReporter
from dspark.cli.progress import Reporter


class Log:
    """Keeps lines, and lets a test wait for one."""

    def __init__(self):
        self.lines = []
        self._more = threading.Condition()

    def note(self, line):
        with self._more:
            self.lines.append(line)
            self._more.notify_all()

    def wait_for(self, count):
        with self._more:
            assert self._more.wait_for(lambda: len(self.lines) >= count, timeout=10)
            return self.lines[:count]


@pytest.mark.parametrize("kind", [Reporter, ProfileReporter])
def test_a_silent_step_is_told_with_its_count(kind):
    log, threads = Log(), set(threading.enumerate())
    with kind(log.note, every_s=0.02) as reporter:
        reporter.step("Measuring, repeat 1 of 3", 0, 96)
        reporter.step("Measuring, repeat 1 of 3", 34, 96)
        assert log.wait_for(3) == ["Measuring, repeat 1 of 3", *["Measuring, repeat 1 of 3: 34 of 96"] * 2]
        log.lines.clear()
        reporter.step("Starting workers")
        assert log.wait_for(2) == ["Starting workers", "Starting workers: 0 s so far"]
    assert set(threading.enumerate()) <= threads


def test_a_step_that_says_enough_by_itself_is_left_alone():
    log = Log()
    with Reporter(log.note, every_s=60) as reporter:
        for done in range(1000):
            reporter.step("Fetching", done, 1000)
    assert log.lines == ["Fetching"]


def test_quiet_starts_no_thread():
    threads = threading.active_count()
    with Sink(json=False, quiet=True).progress() as reporter:
        reporter.step("Starting")
        assert threading.active_count() == threads
