"""Which rounds are timed."""

from itertools import pairwise

import pytest

from dspark.engine.round_meter import RoundMeter


def timed(*, every: bool) -> list[bool]:
    meter = RoundMeter(None, lambda round: None, every=every)
    return [meter.times(index) for index in range(200)]


def test_the_first_round_is_never_timed() -> None:
    assert not timed(every=True)[0]
    assert all(timed(every=True)[1:])


def test_behind_the_first_rounds_a_sample_of_consecutive_ones_is_timed() -> None:
    rounds = timed(every=False)
    assert all(rounds[1:64])
    later = rounds[64:]
    assert 0.1 < sum(later) / len(later) < 0.3
    # What the device waited for between two rounds is known only where both were timed.
    assert sum(a and b for a, b in pairwise(later)) >= sum(later) / 2


@pytest.mark.parametrize("every", [False, True])
def test_rounds_that_nobody_asks_about_are_not_timed(every: bool) -> None:
    assert not any(RoundMeter(None, None, every=every).times(index) for index in range(100))
