"""Capacity and allocation against every allocation there is."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from staircases import all_allocations, batches, round_times, survival_by_definition

from dspark.engine.scheduler.allocation import allocate
from dspark.engine.scheduler.capacity import best_budget, first_drop_budget, gain_curve
from dspark.engine.scheduler.survival import HAZARD_LIMIT, hazards

# Sums of the same numbers in another order.
ROUNDING = 1e-12


def ranked(hazard: np.ndarray, caps: np.ndarray) -> list[tuple[int, int, int]]:
    """Candidates (hazard, request, position), the likeliest first."""
    return sorted(
        (int(hazard[r, j]), r, j)
        for r in range(hazard.shape[0])
        for j in range(hazard.shape[1])
        if j < caps[r] and hazard[r, j] < HAZARD_LIMIT
    )


@given(batches(), round_times())
@settings(max_examples=400, deadline=None)
def test_the_best_budget_is_the_best_of_all_allocations(batch, times):  # type: ignore[no-untyped-def]
    hazard, caps = batch
    requests = len(caps)
    budget = best_budget(gain_curve(hazard, caps), times, num_requests=requests)
    lengths = allocate(hazard, caps, budget=budget)
    assert lengths.sum() == budget
    own = dict(all_allocations(hazard, caps))
    theta = {chosen: (requests + gain) / times[sum(chosen)] for chosen, gain in own.items()}
    best = max(theta.values())
    assert theta[tuple(lengths.tolist())] >= best * (1 - ROUNDING)


@given(batches(steps=[0, 0, HAZARD_LIMIT]), round_times())
@settings(max_examples=400, deadline=None)
def test_of_equally_good_batches_the_smallest_is_taken(batch, times):  # type: ignore[no-untyped-def]
    # Survival of 0 or 1 makes every number exact.
    hazard, caps = batch
    requests = len(caps)
    theta = {
        chosen: (requests + Fraction(gain)) / Fraction(times[sum(chosen)])
        for chosen, gain in all_allocations(hazard, caps)
    }
    best = max(theta.values())
    smallest = min(sum(chosen) for chosen, value in theta.items() if value == best)
    assert best_budget(gain_curve(hazard, caps), times, num_requests=requests) == smallest


@given(batches(), round_times())
@settings(max_examples=400, deadline=None)
def test_the_causal_walk_stops_at_the_first_candidate_that_does_not_improve(batch, times):  # type: ignore[no-untyped-def]
    hazard, caps = batch
    requests = len(caps)
    tokens, admitted = float(requests), 0
    for value, _, _ in ranked(hazard, caps):
        more = tokens + float(survival_by_definition(np.array(value)))
        if more / times[admitted + 1] <= tokens / times[admitted]:
            break
        tokens, admitted = more, admitted + 1
    assert first_drop_budget(gain_curve(hazard, caps), times, num_requests=requests) == admitted


@given(batches())
@settings(max_examples=400, deadline=None)
def test_a_budget_goes_to_the_likeliest_candidates_in_order(batch):  # type: ignore[no-untyped-def]
    hazard, caps = batch
    order = ranked(hazard, caps)
    survival = survival_by_definition(np.array([h for h, _, _ in order]))
    np.testing.assert_allclose(gain_curve(hazard, caps), np.append(0, np.cumsum(survival)), rtol=ROUNDING)
    for budget in range(-1, len(order) + 2):
        expected = np.zeros(len(caps), dtype=int)
        for _, r, _ in order[: max(budget, 0)]:
            expected[r] += 1
        assert allocate(hazard, caps, budget=budget).tolist() == expected.tolist()


def test_the_best_budget_crosses_a_drop_and_the_walk_does_not() -> None:
    gain = np.array([0.0, 0.9, 1.7, 2.4])
    times = np.array([1.0, 1.95, 1.95, 1.2])
    assert best_budget(gain, times, num_requests=1) == 3
    assert first_drop_budget(gain, times, num_requests=1) == 0


def test_a_larger_batch_has_to_be_strictly_better() -> None:
    certain = np.array([0.0, 1.0, 2.0, 3.0])
    assert best_budget(certain, np.array([1.0, 2.0, 3.0, 4.0]), num_requests=1) == 0
    assert first_drop_budget(certain, np.array([1.0, 2.0, 3.0, 4.0]), num_requests=1) == 0
    assert best_budget(certain, np.array([2.0, 2.0, 3.0, 4.0]), num_requests=1) == 1


def test_ties_go_to_the_lower_request_then_the_lower_position() -> None:
    equal = np.zeros((3, 3), dtype=np.int32)
    assert allocate(equal, np.array([3, 3, 3]), budget=4).tolist() == [3, 1, 0]
    assert allocate(equal, np.array([1, 3, 3]), budget=4).tolist() == [1, 3, 0]


@pytest.mark.parametrize("caps", [[0, 0], [-3, 0]])
def test_no_candidates(caps: list[int]) -> None:
    hazard = hazards(np.ones((2, 3), dtype=np.float32), np.ones(3))
    assert gain_curve(hazard, np.array(caps)).tolist() == [0.0]
    assert allocate(hazard, np.array(caps), budget=5).tolist() == [0, 0]
    assert best_budget(np.zeros(1), np.ones(1), num_requests=2) == 0
    assert first_drop_budget(np.zeros(1), np.ones(1), num_requests=2) == 0


def test_whether_a_position_is_verified_depends_on_nothing_at_or_behind_it() -> None:
    rng = np.random.default_rng(0)
    logits = rng.normal(0, 2, (6, 5)).astype(np.float32)
    caps, budget = np.full(6, 5), 11
    lengths = allocate(hazards(logits, np.ones(5)), caps, budget=budget)
    for row in range(6):
        for position in range(5):
            changed = logits.copy()
            # c_k reads x_1 .. x_{k-1}: a token at `position` moves what follows it and nothing up to itself.
            changed[row, position + 1 :] = rng.normal(0, 2, 4 - position)
            again = allocate(hazards(changed, np.ones(5)), caps, budget=budget)
            assert (again[row] > position) == (lengths[row] > position)
