"""What is said of steps that are too slow for what a run was asked to do."""

import pytest

from dspark.engine.training.pace import Pace
from dspark.engine.training.settings import TrainSettings

SIZES = "lower --rows (32), --row-tokens (512) or --anchors (96)."


@pytest.mark.parametrize(
    ("end", "step_time_s", "said"),
    [
        ({"minutes": 10}, 200.0, f"fits 3 times into --minutes 10, too few to teach a drafter much: {SIZES}"),
        ({"minutes": 2.5}, 100.0, f"fits once into --minutes 2.5, too few to teach a drafter much: {SIZES}"),
        ({"minutes": 1}, 70.0, f"fits not even once into --minutes 1, too few to teach a drafter much: {SIZES}"),
        ({"steps": 1000}, 200.0, f"A step takes 200.0 s here, so the 1,000 of --steps take about 56 hours: {SIZES}"),
    ],
    ids=["minutes", "one step", "not even one", "steps"],
)
def test_steps_that_are_too_slow_are_told_with_their_time_and_what_to_lower(end, step_time_s, said):
    pace = Pace(TrainSettings(**end), compiles=False)
    assert pace.warning(step_time_s).endswith(said)
    assert pace.warning(step_time_s) is None


@pytest.mark.parametrize(
    ("end", "step_time_s"),
    [({"minutes": 10}, 20.0), ({"steps": 30}, 200.0), ({"steps": 100_000}, 0.2)],
    ids=["30 steps fit", "few steps", "many quick ones"],
)
def test_of_steps_that_will_do_nothing_is_said(end, step_time_s):
    pace = Pace(TrainSettings(**end), compiles=False)
    assert pace.warning(step_time_s) is None


def test_a_first_reading_that_takes_in_compilation_is_not_judged():
    pace = Pace(TrainSettings(minutes=10), compiles=True)
    assert pace.warning(60.0) is None
    assert "A step takes 50.0 s here, which fits 12 times" in pace.warning(50.0)
