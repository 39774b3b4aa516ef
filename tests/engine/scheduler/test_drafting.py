"""The choice of a block's length in worlds whose truth is known: what it finds out, how fast, and what that costs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import pytest

from dspark.engine.scheduler.drafting import DraftChoice, draft_lengths

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
        choice, rng = DraftChoice([7]), np.random.default_rng(0)
        known = 2.0
        for i in range(rounds):
            if i >= 2 and self.drafted[i - 2]:
                known = self.worth(i) * np.exp(self.noise * rng.standard_normal())
            drafted = choice.decide(
                (0.0, np.log(known)), num_requests=self.requests(i), round_s=ROUND_S, draft_s=(0.0, PROBE_S)
            )
            self.drafted.append(drafted == 7)
            self.on.append(choice.steps == 7)
            if choice.steps:
                self.lost_s += max(1 - self.worth(i), 0.0) * (ROUND_S + PROBE_S)
            elif drafted:
                # As if nobody had a use for what was drafted.
                self.lost_s += PROBE_S
            self.total_s += ROUND_S
        return self

    def first(self, wanted: bool, *, after: int) -> int:
        """Rounds from `after` on until the choice stands at `wanted`."""
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
def test_a_drafter_that_helps_is_never_left_out(worth: float) -> None:
    world = World(steady(1), steady(worth)).run(2000)
    assert all(world.drafted)


def test_a_small_lasting_disadvantage_is_noticed() -> None:
    world = World(steady(64), steady(0.985)).run(500)
    assert world.first(False, after=0) < 100


def test_a_comparison_of_several_rounds_counts_for_them() -> None:
    """Whoever asks every fourth round learns of a disadvantage as soon as who asks in each, give or take those four."""
    changed = []
    for rounds in (1, 4):
        choice, went_by = DraftChoice([7]), 0
        while choice.steps:
            choice.decide((0.0, -0.03), num_requests=64, round_s=ROUND_S, draft_s=(0.0, PROBE_S), rounds=rounds)
            went_by += rounds
        changed.append(went_by)
    assert changed[0] <= changed[1] < changed[0] + 4


def test_noise_about_zero_does_not_flip_the_choice() -> None:
    rng = np.random.default_rng(1)
    choice, stood = DraftChoice([7]), []
    for _ in range(3000):
        known = 0.03 * rng.standard_normal()
        choice.decide((0.0, known), num_requests=8, round_s=ROUND_S, draft_s=(0.0, PROBE_S))
        stood.append(choice.steps)
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


LENGTHS = (0, 1, 3, 7)
DRAFT_S = (0.0, 0.1, 0.15, 0.3)


@dataclass
class WorldOfLengths:
    """Rounds of 1 s without drafting. What a length is worth becomes known two rounds after as long a block."""

    worth: Callable[[int], tuple[float, ...]]  # throughput of each of LENGTHS
    lost_s: float = 0.0
    drafted: list[int] = field(default_factory=list)
    stood: list[int] = field(default_factory=list)

    def run(self, rounds: int) -> WorldOfLengths:
        choice, known = DraftChoice(LENGTHS[1:]), list(self.worth(0))
        for i in range(rounds):
            truth = self.worth(i)
            for at, length in enumerate(LENGTHS):
                if i >= 2 and self.drafted[i - 2] >= length:
                    known[at] = truth[at]
            self.drafted.append(
                choice.decide(np.log(known).tolist(), num_requests=64, round_s=ROUND_S, draft_s=DRAFT_S)
            )
            self.stood.append(choice.steps)
            at, stood = (LENGTHS.index(steps) for steps in (self.drafted[-1], choice.steps))
            lost_s = (max(truth) - truth[at]) / max(truth) * (ROUND_S + DRAFT_S[at])
            # Of a probe nobody has to verify more than pays.
            self.lost_s += lost_s if at == stood else min(lost_s, DRAFT_S[at] - DRAFT_S[stood])
        return self


@pytest.mark.parametrize("best", LENGTHS)
def test_the_length_that_is_worth_most_is_found_and_kept(best: int) -> None:
    world = WorldOfLengths(lambda i: tuple(1.0 if length == best else 0.9 for length in LENGTHS)).run(3000)
    assert set(world.stood[20:]) == {best}
    assert set(world.drafted[20:]) <= {best, 7}
    # The first few rounds, and what probes take afterwards.
    assert world.lost_s < 1 + 0.005 * 3000


@pytest.mark.parametrize("length", LENGTHS[:-1])
def test_below_whole_blocks_longer_ones_are_looked_at_and_cost_little(length: int) -> None:
    at = LENGTHS.index(length)
    worth = tuple(0.5 if i > at else 0.9 + 0.1 * (i == at) for i in range(len(LENGTHS)))
    world = WorldOfLengths(lambda i: worth).run(5000)
    probes = sum(drafted == 7 for drafted in world.drafted[1000:])
    assert 10 < probes < 0.05 * 4000
    assert world.lost_s < 1 + 0.005 * 5000


def test_text_that_becomes_worth_a_longer_block_is_found_by_the_next_probe() -> None:
    easier, harder = (0.7, 0.8, 0.9, 1.0), (0.9, 1.0, 0.8, 0.6)
    world = WorldOfLengths(lambda i: harder if i < 2000 else easier).run(3000)
    assert set(world.stood[100:2000]) == {1}
    # A probe of 0.2 s is paid by 0.4 % of 50 rounds.
    assert world.stood[2000:].index(7) < 50 + 20
    assert set(world.stood[2100:]) == {7}


def test_text_that_becomes_worth_a_shorter_block_needs_no_probe() -> None:
    easier, harder = (0.7, 0.8, 0.9, 1.0), (0.9, 0.95, 1.0, 0.6)
    world = WorldOfLengths(lambda i: easier if i < 1000 else harder).run(1500)
    assert set(world.drafted[:1000]) == {7} and world.stood[1000:].index(3) < 10


def test_probes_are_paid_by_all_rounds_that_went_by() -> None:
    for rounds in (1, 16):
        choice, drafted = DraftChoice([7]), []
        for _ in range(9600 // rounds):
            drafted.append(choice.decide((0.0, -0.3), num_requests=4, round_s=1.0, draft_s=(0.0, 0.3), rounds=rounds))
        # In the second half, behind what the first few rounds have cost: 0.4 % of 4,800 s.
        assert sum(map(bool, drafted[len(drafted) // 2 :])) == pytest.approx(0.004 * 4800 / 0.3, abs=1)


@pytest.mark.parametrize(
    ("gamma", "lengths"), [(1, (1,)), (2, (1, 2)), (3, (1, 3)), (4, (1, 2, 4)), (7, (1, 3, 7)), (15, (1, 7, 15))]
)
def test_lengths_are_one_token_half_a_block_and_all_of_it(gamma: int, lengths: tuple[int, ...]) -> None:
    assert draft_lengths(gamma) == lengths
