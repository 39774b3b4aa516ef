"""Learning rate and clock of a run."""

import pytest
from refusals import assert_reads_well

from dspark.engine.errors import UsageError
from dspark.engine.training.schedule import RunClock, learning_rate
from dspark.engine.training.settings import DrafterShape, TextSettings, TrainJob, TrainSettings


def test_the_rate_rises_in_a_line_and_falls_in_half_a_cosine():
    settings = TrainSettings(steps=100, learning_rate=1.0, warmup=0.1)
    assert learning_rate(settings, 0.0) == pytest.approx(0.01)
    assert learning_rate(settings, 0.05) == pytest.approx(0.5)
    assert learning_rate(settings, 0.1) == pytest.approx(1.0)
    assert learning_rate(settings, 0.55) == pytest.approx(0.505)
    assert learning_rate(settings, 1.0) == learning_rate(settings, 1.5) == pytest.approx(0.01)


def test_a_run_of_minutes_counts_what_an_earlier_process_took():
    now = [100.0]
    clock = RunClock(TrainSettings(minutes=2), before_s=30.0, clock=lambda: now[0])
    assert (clock.progress(7), clock.left_s(7)) == (0.25, 90.0)
    now[0] += 45
    assert (clock.elapsed_s, clock.progress(7), clock.left_s(7)) == (75.0, 0.625, 45.0)
    now[0] += 60
    assert clock.left_s(7) == 0.0


def test_a_run_of_steps_guesses_the_time_left_from_the_pace():
    now = [0.0]
    clock = RunClock(TrainSettings(steps=10), clock=lambda: now[0])
    assert clock.left_s(0) is None
    now[0] = 8.0
    assert (clock.progress(4), clock.left_s(4)) == (0.4, 12.0)


@pytest.mark.parametrize(
    "make",
    [
        lambda path: TrainSettings(),
        lambda path: TrainSettings(steps=1, minutes=1.0),
        lambda path: TrainSettings(steps=0),
        lambda path: TrainSettings(minutes=float("nan")),
        lambda path: TrainSettings(steps=1, rows=0),
        lambda path: TrainSettings(steps=1, row_tokens=100),
        lambda path: TrainSettings(steps=1, warmup=1.0),
        lambda path: TrainSettings(steps=1, learning_rate=-1.0),
        lambda path: TrainSettings(steps=1, ce_share=-0.1),
        lambda path: DrafterShape(layers=0),
        lambda path: DrafterShape(block_size=65),
        lambda path: DrafterShape(markov_head="deep"),
        lambda path: DrafterShape(markov_rank=0),
        lambda path: TextSettings(temperatures=()),
        lambda path: TextSettings(temperatures=(1.0, -1.0)),
        lambda path: TextSettings(minutes=0.0),
        lambda path: TrainJob("t", path, DrafterShape(), TrainSettings(steps=1), TextSettings(), dtype="int8"),
        lambda path: TrainJob("t", path, DrafterShape(), TrainSettings(steps=1), TextSettings(), device="tpu"),
    ],
    ids=[f"case_{number}" for number in range(18)],
)
def test_settings_that_make_no_sense_are_refused_with_a_remedy(make, tmp_path):
    with pytest.raises(UsageError) as refused:
        make(tmp_path)
    assert_reads_well(refused.value)
