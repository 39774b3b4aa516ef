"""Schedules leave the target's distribution as it is: every course of some rounds, with its exact probability."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import numpy as np
import pytest
from enumerated_rounds import GAMMA, Schedule, ToyChain, emitted

from dspark.engine.scheduler.allocation import allocate
from dspark.engine.scheduler.capacity import best_budget, first_drop_budget, gain_curve
from dspark.engine.scheduler.history import SurvivalHistory
from dspark.engine.scheduler.planner import Review, RoundPlanner
from dspark.engine.scheduler.policies import ScheduleView, Threshold
from dspark.engine.scheduler.round_time import RoundClock, RoundLoad
from dspark.engine.scheduler.survival import hazards
from dspark.profiles import Staircase, StepCurve

EXACT = 1e-12
# Seconds of batches of 1 to 6 tokens: two with a jump, of one request's and of two requests' batches, that is worth its
# time only if a token behind it is likely, and one where the walk goes on as long as tokens are likely.
TIMES = {
    "jump of one": np.array([1.0, 2.2, 2.3, 2.35, 3.6, 3.7]),
    "jump of two": np.array([0.9, 1.0, 2.0, 2.05, 2.1, 2.3]),
    "slope": np.array([1.0, 1.5, 2.05, 2.4, 2.9, 3.6]),
}
# Behind a 0 the drafter is nearly right, behind a 1 it is nearly always wrong.
CHAIN = ToyChain.with_true_confidence(np.array([[0.6, 0.4], [0.9, 0.1]]), np.array([[0.55, 0.45], [0.2, 0.8]]))


def budgeted(search, source: str, times: np.ndarray) -> Schedule:  # type: ignore[no-untyped-def]
    """Capacity by `search` from the survival of this block or of the one before."""

    @cache
    def lengths(past: tuple[bytes, ...], own_bytes: bytes, requests: int) -> tuple[int, ...]:
        own = _hazards(own_bytes, requests)
        older = _hazards(past[-1], requests) if past else np.zeros_like(own)
        caps = np.full(requests, GAMMA)
        gain = gain_curve(own if source == "own" else older, caps)
        budget = search(gain, times[requests - 1 :], num_requests=requests)
        return tuple(allocate(own, caps, budget=budget).tolist())

    return lambda past, logits: lengths(past, logits.tobytes(), len(logits))


def planned(times: np.ndarray, *, causal: bool, one_s: float | None = None) -> Schedule:
    """The planner and the history as a decode uses them, drafting given up, shortened and resumed included.

    one_s: what drafting one token takes; None: as much as a block.
    """

    @cache
    def lengths(past: tuple[bytes, ...], own_bytes: bytes, requests: int) -> tuple[int, ...]:
        kind = RoundPlanner if one_s is None else Impatient
        planner = kind(RoundClock(curve(times, one_s), adapt=False), gamma=GAMMA, causal=causal)
        history, slots = SurvivalHistory(requests, GAMMA), np.arange(requests)
        steps, steps_before = planner.first_steps, 0
        for logits in (*past, own_bytes):
            own = _hazards(logits, requests)[:, :steps]
            history.schedule(slots, drafted=steps > 0)
            history.process(slots, own if steps else None)
            view = history.before(slots)
            caps = np.full(requests, steps)
            load = RoundLoad(requests, 0)
            if not causal:
                planner.learn(view.hazards[view.known] if steps_before else None)
            plan = planner.plan(own if causal else view.hazards, caps, load, known=None if causal else view.known)
            result = allocate(own, caps, budget=plan.budget)
            steps_before, steps = steps, plan.next_steps
        return tuple(result.tolist())

    return lambda past, logits: lengths(past, logits.tobytes(), len(logits))


class Impatient(RoundPlanner):
    """Drafts in the next round what the last block it may know of was worth most of: few rounds are looked at here."""

    def review(self, load: RoundLoad) -> Review:
        return self._reviewed(load)

    def _next_steps(self, load: RoundLoad, review: Review, rounds: int) -> int:
        return (0, *self._lengths)[int(np.argmax(review.log_worth))]


def curve(times: np.ndarray, one_s: float | None) -> StepCurve:
    def stairs(buckets: list[int], times: np.ndarray) -> Staircase:
        zeros = np.zeros(len(buckets), dtype=int)
        return Staircase("tokens", "none", buckets, times, times, times, *3 * (zeros, zeros.astype(float)))

    small = stairs([1, 2], np.array([1e-9, 1e-9]))
    return StepCurve(
        target=stairs([1, 2, 3, 4, 5, 6], times),
        draft=stairs([1, 2], np.array([0.12, 0.15])),
        draft_one=None if one_s is None else stairs([1, 2], np.array([one_s, one_s])),
        verify_greedy=small,
        verify_sampled=small,
        tokens_per_request=1 + GAMMA,
        block_width=GAMMA,
        reference_context_tokens=1,
    )


def _hazards(logits: bytes, requests: int) -> np.ndarray:
    return hazards(np.frombuffer(logits, dtype=np.float32).reshape(requests, GAMMA), np.ones(GAMMA))


def target_alone(chain: ToyChain, requests: int, tokens: int) -> np.ndarray:
    one = chain.text_probabilities(0, tokens)
    joint = one
    for _ in range(requests - 1):
        joint = np.multiply.outer(joint, one)
    return joint


def recorded(schedule: Schedule, seen: set) -> Schedule:
    def lengths(past: tuple[bytes, ...], logits: np.ndarray) -> tuple[int, ...]:
        result = schedule(past, logits)
        seen.add(result)
        return result

    return lengths


LAWFUL: dict[str, Callable[[np.ndarray], Schedule]] = {
    "async": lambda times: budgeted(best_budget, "older", times),
    "causal": lambda times: budgeted(first_drop_budget, "own", times),
    "async-planner": lambda times: planned(times, causal=False),
    "causal-planner": lambda times: planned(times, causal=True),
    "async-planner-of-lengths": lambda times: planned(times, causal=False, one_s=0.02),
    "causal-planner-of-lengths": lambda times: planned(times, causal=True, one_s=0.02),
}
SIZES = pytest.mark.parametrize(("requests", "tokens"), [(1, 4), (2, 2)], ids=["one-request", "two-requests"])


@SIZES
@pytest.mark.parametrize("policy", LAWFUL)
def test_text_has_the_targets_distribution(policy: str, requests: int, tokens: int) -> None:
    seen: set = set()
    expected = target_alone(CHAIN, requests, tokens)
    for times in TIMES.values():
        schedule = recorded(LAWFUL[policy](times), seen)
        actual = emitted(CHAIN, schedule, requests=requests, tokens=tokens)
        np.testing.assert_allclose(actual, expected, atol=EXACT, rtol=0)
    # A schedule that never varies would pass whatever it reads.
    assert len(seen) > 1


@SIZES
def test_capacity_from_the_block_itself_is_found_out(requests: int, tokens: int) -> None:
    expected = target_alone(CHAIN, requests, tokens)
    schedules = [budgeted(best_budget, "own", times) for times in TIMES.values()]
    off = [np.abs(emitted(CHAIN, s, requests=requests, tokens=tokens) - expected).max() for s in schedules]
    assert max(off) > 0.01


# Speeds of batches of 1, 2 and 3 tokens; the second token is certain behind an A and hopeless behind a B.
_P, _Q = np.array([[0.7, 0.3]] * 2), np.array([[0.5, 0.5]] * 2)
_SPEEDS = np.array([1.0, 0.5, 0.45])
_BEHIND_A = np.array([[[0.8, 0.8]] * 2, [[1.0, 1.0], [0.0, 0.0]]])


def first_token(chain: ToyChain, schedule: Schedule) -> float:
    """P(A)."""
    return float(emitted(chain, schedule, requests=1, tokens=1)[0])


@pytest.mark.parametrize(("source", "expected"), [("own", 0.85), ("older", 0.70)])
def test_the_papers_counterexample(source: str, expected: float) -> None:
    def schedule(past: tuple[bytes, ...], logits: np.ndarray) -> tuple[int, ...]:
        own = hazards(logits, np.ones(2))
        # The block before was one that made a large batch worth while.
        older = hazards(np.float32([[1.4, 30.0]]), np.ones(2))
        caps = np.array([2])
        budget = best_budget(gain_curve(own if source == "own" else older, caps), 1 / _SPEEDS, num_requests=1)
        return tuple(allocate(own, caps, budget=budget).tolist())

    assert first_token(ToyChain(_P, _Q, _BEHIND_A), schedule) == pytest.approx(expected, abs=EXACT)


def test_the_walk_reads_the_same_block_and_is_right() -> None:
    def schedule(past: tuple[bytes, ...], logits: np.ndarray) -> tuple[int, ...]:
        own, caps = hazards(logits, np.ones(2)), np.array([2])
        budget = first_drop_budget(gain_curve(own, caps), 1 / _SPEEDS, num_requests=1)
        return tuple(allocate(own, caps, budget=budget).tolist())

    assert first_token(ToyChain(_P, _Q, _BEHIND_A), schedule) == pytest.approx(0.70, abs=EXACT)


@pytest.mark.parametrize(("confidence", "expected"), [("of the drafted token", 0.65), ("largest", 0.5)])
def test_a_drafted_token_must_not_decide_its_own_admission(confidence: str, expected: float) -> None:
    p, q = np.array([[0.5, 0.5]] * 2), np.array([[0.7, 0.3]] * 2)
    own = np.broadcast_to(q if confidence == "of the drafted token" else q.max(axis=1, keepdims=True), (2, 2))
    chain = ToyChain(p, q, np.stack([own, own]))

    def schedule(past: tuple[bytes, ...], logits: np.ndarray) -> tuple[int, ...]:
        return tuple(Threshold(0.6).lengths(ScheduleView(np.array([2]), logits, np.ones(2))).tolist())

    assert first_token(chain, schedule) == pytest.approx(expected, abs=EXACT)
