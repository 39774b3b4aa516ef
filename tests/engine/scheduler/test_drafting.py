"""The choice of a block's length in worlds whose truth is known: what it finds out, how fast, and what that costs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import pytest

from dspark.engine.scheduler.drafting import DraftChoice

ROUND_S, PROBE_S = 1.0, 0.3


@dataclass
class World:
    """Rounds of 1 s without drafting. A block's worth becomes known two rounds after it was drafted."""

    requests: Callable[[int], int]
    worth: Callable[[int], float]  # throughput with drafting / without
    noise: float = 0.0
    lost_s: float = 0.0
    total_s: float = 0.0
    drafted: list[bool] = field(default_factory=list)
    on: list[bool] = field(default_factory=list)

    def run(self, rounds: int) -> World:
        switch, rng = DraftChoice([7]), np.random.default_rng(0)
        known = 2.0
        for i in range(rounds):
            if i >= 2 and self.drafted[i - 2]:
                known = self.worth(i) * np.exp(self.noise * rng.standard_normal())
            drafted = switch.decide(
                (0.0, np.log(known)), num_requests=self.requests(i), round_s=ROUND_S, draft_s=(0.0, PROBE_S)
            )
            self.drafted.append(drafted == 7)
            self.on.append(switch.steps == 7)
            if switch.steps:
                self.lost_s += max(1 - self.worth(i), 0.0) * (ROUND_S + PROBE_S)
            elif drafted:
                # As if nobody had a use for what was drafted.
                self.lost_s += PROBE_S
            self.total_s += ROUND_S
        return self

    def first(self, wanted: bool, *, after: int) -> int:
        """Rounds from `after` on until the switch stands at `wanted`."""
        return self.on[after:].index(wanted)


def steady(value: float) -> Callable[[int], float]:
    return lambda i: value


@pytest.mark.parametrize("worth", [0.3, 0.7, 0.9])
@pytest.mark.parametrize("noise", [0.0, 0.1], ids=["exact", "noisy"])
def test_a_drafter_that_never_helps_costs_less_than_one_per_cent(worth: float, noise: float) -> None:
    world = World(steady(64), steady(worth), noise).run(5000)
    assert world.lost_s < 0.01 * world.total_s
    # And it is still looked at, for it may get better.
    assert sum(world.drafted[1000:]) > 10


@pytest.mark.parametrize("worth", [1.02, 1.3])
def test_a_drafter_that_helps_is_never_switched_off(worth: float) -> None:
    world = World(steady(1), steady(worth)).run(2000)
    assert all(world.drafted)


def test_a_small_lasting_disadvantage_is_noticed() -> None:
    world = World(steady(64), steady(0.985)).run(500)
    assert world.first(False, after=0) < 100


def test_noise_about_zero_does_not_flip_the_switch() -> None:
    rng = np.random.default_rng(1)
    switch, stood = DraftChoice([7]), []
    for _ in range(3000):
        known = 0.03 * rng.standard_normal()
        switch.decide((0.0, known), num_requests=8, round_s=ROUND_S, draft_s=(0.0, PROBE_S))
        stood.append(switch.steps)
    assert np.count_nonzero(np.diff(stood)) <= 4


def test_a_lower_load_at_which_drafting_helps_is_seen_at_once() -> None:
    world = World(lambda i: 512 if i < 1000 else 8, lambda i: 0.7 if i < 1000 else 1.5).run(1200)
    assert not any(world.on[50:1000])
    assert world.first(True, after=1000) < 10
    assert all(world.drafted[1010:])


def test_a_higher_load_at_which_it_does_not_is_seen_as_fast() -> None:
    world = World(lambda i: 8 if i < 1000 else 512, lambda i: 1.5 if i < 1000 else 0.7).run(1200)
    assert all(world.drafted[:1000])
    assert world.first(False, after=1000) < 10


def test_text_that_gets_easier_is_found_by_the_next_probe() -> None:
    world = World(steady(64), lambda i: 0.7 if i < 2000 else 1.5).run(2500)
    # A probe of 0.3 s is paid by 0.4 % of 75 rounds.
    assert world.first(True, after=2000) < 75 + 10


def test_a_load_that_never_rests_costs_no_more() -> None:
    world = World(lambda i: 4 if i % 2 else 64, steady(0.7)).run(5000)
    assert world.lost_s < 0.01 * world.total_s


def test_it_is_a_function_of_what_it_was_told() -> None:
    one, other = (World(steady(8), steady(0.9), 0.2).run(800) for _ in range(2))
    assert one.drafted == other.drafted
