"""What policies would make of recorded blocks: a replay without models (policy frontier: arXiv 2607.05147, section 6).

Every policy gets the same blocks, drawn again within each recorded request, goes through the very functions that
schedule a decode, and pays the step curve's times. What a replay cannot show is how text depends on the schedule: each
block is drafted as if the one before it had ended where it did when it was recorded. Plans are made for every round,
where a decode keeps some for a few.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dspark.engine.scheduler.allocation import allocate
from dspark.engine.scheduler.arrays import FloatArray, HazardArray, IntArray
from dspark.engine.scheduler.history import SurvivalHistory
from dspark.engine.scheduler.planner import RoundPlanner
from dspark.engine.scheduler.policies import Planned, ScheduleView, parse_policy
from dspark.engine.scheduler.round_time import RoundClock, RoundLoad
from dspark.engine.scheduler.survival import hazards
from dspark.profiles import StepCurve

_WARM_UP = 0.1  # of the rounds, before anything is counted


@dataclass(frozen=True, slots=True)
class ReplayBlocks:
    """N recorded blocks of G tokens, or of none, all of them verified, in the order of their requests."""

    confidence_logits: NDArray[np.float32]  # [N, G], NaN where nothing was drafted
    temperatures: NDArray[np.float64]  # [G]
    hazards: HazardArray  # [N, G]
    caps: IntArray  # [N], tokens drafted
    accepted: IntArray  # [N]
    first_row: IntArray  # [requests]
    num_rows: IntArray  # [requests]

    @classmethod
    def of(
        cls, *, request: ArrayLike, accepted: ArrayLike, confidence_logits: ArrayLike, temperatures: ArrayLike
    ) -> ReplayBlocks:
        """request [N], accepted [N], confidence_logits [N, G], temperatures [G] of blocks drafted and verified in full.

        Raises:
            ValueError: there are no blocks.
        """
        requests = np.asarray(request)
        if requests.size == 0:
            raise ValueError("there are no blocks to replay")
        order = np.argsort(requests, kind="stable")
        logits = np.asarray(confidence_logits, dtype=np.float32)[order]
        scales = np.asarray(temperatures, dtype=np.float64)
        _, first, counts = np.unique(requests[order], return_index=True, return_counts=True)
        return cls(
            confidence_logits=logits,
            temperatures=scales,
            hazards=hazards(logits, scales),
            caps=np.isfinite(logits).sum(axis=1),
            accepted=np.asarray(accepted, dtype=np.int64)[order],
            first_row=first,
            num_rows=counts,
        )

    @property
    def gamma(self) -> int:
        """Tokens of a block."""
        return self.confidence_logits.shape[1]


@dataclass(frozen=True, slots=True)
class ReplayResult:
    """One policy at one concurrency."""

    policy: str
    concurrency: int
    tokens_per_s: float
    tokens_per_s_per_user: float
    verified_per_request: float  # drafted tokens verified, of one request in one round
    mean_accepted: float  # of one request in one round
    drafting_share: float  # of the rounds ended with drafting


@dataclass(frozen=True, slots=True)
class _Draws:
    """Which block each request has in each of N rounds."""

    rows: IntArray  # [N, R]
    fresh: NDArray[np.bool_]  # [N, R], the first round of a request


def replay(
    blocks: ReplayBlocks,
    curve: StepCurve,
    *,
    policy: str,
    concurrency: int,
    rng: np.random.Generator,
    rounds: int | None = None,
    context_tokens: int | None = None,
    sampled: bool = False,
    certain: bool = False,
) -> ReplayResult:
    """Throughput of `policy` with `concurrency` requests at any time.

    Args:
        policy: as `--policy` spells it, or `oracle`, which knows all outcomes: no schedule is faster.
        rng: equal generators give different policies equal blocks.
        rounds: None: as many as make the spread small, 200 to 4,000.
        context_tokens: visible tokens of each request; None: the curve's reference.
        sampled: time drafting and verification as at temperature 1.
        certain: drafts are functions of the text, so that `async` may plan by the very block that it verifies.

    Raises:
        UsageError: the policy is spelled wrong.
        ProfileError: the curve knows no batch of so many requests.
    """
    if rounds is None:
        rounds = int(np.clip(40_000 // concurrency, 200, 4_000))
    context = curve.reference_context_tokens if context_tokens is None else context_tokens
    load = RoundLoad(concurrency, concurrency * context, sampled, context + 1 + blocks.gamma)
    clock = RoundClock(curve, adapt=False)
    most = min(concurrency * (1 + blocks.gamma), curve.max_batch_tokens)
    step_s = clock.step_times_s(load, most_tokens=most)
    draft_s = np.array([0.0, *(clock.draft_s(load, steps) for steps in range(1, blocks.gamma + 1))])
    draws = _draw(blocks, concurrency, rounds, rng)
    counted = slice(int(_WARM_UP * rounds), None)
    if policy in ("async", "causal"):
        lengths, steps = _planned(blocks, draws, load, clock, causal=policy == "causal", certain=certain)
    elif policy == "oracle":
        lengths, steps = _best(blocks, draws, step_s, draft_s, counted=counted)
    else:
        lengths, steps = _fixed(blocks, draws, policy)
    accepted = np.minimum(blocks.accepted[draws.rows], lengths)
    time_s = step_s[lengths.sum(axis=1)] + draft_s[steps]
    tokens = accepted[counted].sum() + accepted[counted].size
    tokens_per_s = float(tokens / time_s[counted].sum())
    return ReplayResult(
        policy=policy,
        concurrency=concurrency,
        tokens_per_s=tokens_per_s,
        tokens_per_s_per_user=tokens_per_s / concurrency,
        verified_per_request=float(lengths[counted].mean()),
        mean_accepted=float(accepted[counted].mean()),
        drafting_share=float((steps[counted] > 0).mean()),
    )


def _draw(blocks: ReplayBlocks, concurrency: int, rounds: int, rng: np.random.Generator) -> _Draws:
    """Requests follow one another in each slot, each for as many rounds as were recorded of it."""
    rows = np.empty((rounds, concurrency), dtype=np.int64)
    fresh = np.zeros((rounds, concurrency), dtype=bool)
    picks = rng.random((rounds, concurrency))
    for slot in range(concurrency):
        request = rng.integers(len(blocks.num_rows), size=rounds + 1)
        # The first one is met at some round of its life, so that not all slots change hands at once.
        lives = blocks.num_rows[request]
        lives[0] = rng.integers(1, lives[0] + 1)
        owner = request[np.repeat(np.arange(rounds + 1), lives)[:rounds]]
        starts = np.cumsum(lives)
        fresh[starts[starts < rounds], slot] = True
        rows[:, slot] = blocks.first_row[owner] + (picks[:, slot] * blocks.num_rows[owner]).astype(np.int64)
    return _Draws(rows, fresh)


def _fixed(blocks: ReplayBlocks, draws: _Draws, policy: str) -> tuple[IntArray, IntArray]:
    """Lengths [N, R] of a policy that looks at each block alone, and tokens drafted of each block [N]."""
    view = ScheduleView(blocks.caps, blocks.confidence_logits, blocks.temperatures)
    rule = parse_policy(policy, blocks.gamma)
    assert not isinstance(rule, Planned), "planned policies look at whole rounds"
    lengths = np.minimum(rule.lengths(view), blocks.caps)[draws.rows]
    return lengths, np.full(len(lengths), rule.steps(blocks.gamma))


def _best(
    blocks: ReplayBlocks, draws: _Draws, step_s: FloatArray, draft_s: FloatArray, *, counted: slice
) -> tuple[IntArray, IntArray]:
    """Lengths [N, R], and tokens drafted [N], of the largest throughput that any schedule of these blocks can have.

    How many tokens are best in a round follows from what its time is worth in the others: tokens - rate * time is
    maximised for a rate that is raised until it is the throughput itself (Dinkelbach 1967). A budget may be larger than
    what will be accepted, where that leads to a faster bucket; and a round may do without its draft, or part of it.

    Args:
        step_s: of R, R + 1 ... packed tokens.
        draft_s: of 0, 1 ... G drafted tokens of each request.
        counted: the rounds of which the throughput is.
    """
    accepted, caps = blocks.accepted[draws.rows], blocks.caps[draws.rows]
    rounds, requests = accepted.shape
    budgets = np.arange(len(step_s))
    # Of blocks that take equally long, the whole one leaves all choices open.
    lengths = [steps for steps in range(len(draft_s)) if steps == blocks.gamma or draft_s[steps] < draft_s[-1]]
    passing = [np.minimum(accepted, steps).sum(axis=1) for steps in lengths]  # [N] each
    counts = [np.unique(passes, return_inverse=True) for passes in passing]
    rate, better = -1.0, 0.0
    while better > rate:
        rate = better
        choice, value = np.zeros((len(lengths), rounds), dtype=np.int64), np.empty((len(lengths), rounds))
        for i, steps in enumerate(lengths):
            different, which = counts[i]
            most = min(len(budgets), requests * steps + 1)
            gained = requests + np.minimum(budgets[:most], different[:, None])  # [different counts, budgets]
            worth = gained - rate * (step_s[:most] + draft_s[steps])
            choice[i] = worth.argmax(axis=1)[which]
            value[i] = worth.max(axis=1)[which]
        best = value.argmax(axis=0)
        budget = choice[best, np.arange(rounds)]
        steps_of = np.array(lengths)[best]
        tokens = requests + np.minimum(budget, np.array(passing)[best, np.arange(rounds)])
        better = float(tokens[counted].sum() / (step_s[budget] + draft_s[steps_of])[counted].sum())
    useful = _filled(budget[:, None], np.minimum(accepted, steps_of[:, None]))
    rest = budget[:, None] - useful.sum(axis=1, keepdims=True)
    return useful + _filled(rest, np.minimum(caps, steps_of[:, None]) - useful), steps_of


def _filled(budget: IntArray, room: IntArray) -> IntArray:
    """budget [N, 1] given to room [N, R] from the first request on -> [N, R]."""
    return np.clip(budget - (np.cumsum(room, axis=1) - room), 0, room)


def _planned(
    blocks: ReplayBlocks, draws: _Draws, load: RoundLoad, clock: RoundClock, *, causal: bool, certain: bool
) -> tuple[IntArray, IntArray]:
    """Lengths [N, R], and tokens of the blocks that are drafted at the end of each round [N]."""
    rounds, concurrency = draws.rows.shape
    planner = RoundPlanner(clock, gamma=blocks.gamma, causal=causal, certain=certain)
    reads_own = causal or certain
    history = SurvivalHistory(concurrency, blocks.gamma)
    slots = np.arange(concurrency)
    lengths = np.zeros((rounds, concurrency), dtype=np.int64)
    drafted = np.zeros(rounds, dtype=np.int64)
    steps, steps_before = planner.first_steps, 0
    for i, rows in enumerate(draws.rows):
        history.reset(slots[draws.fresh[i]])
        history.schedule(slots, drafted=steps > 0)
        own = blocks.hazards[rows, :steps]
        older = history.before(slots)
        caps = np.minimum(steps, blocks.caps[rows])
        if not reads_own:
            planner.learn(older.hazards[older.known] if steps_before > 0 else None)
        plan = planner.plan(own if reads_own else older.hazards, caps, load, known=None if reads_own else older.known)
        lengths[i] = allocate(own, caps, budget=plan.budget)
        history.process(slots, own if steps > 0 else None)
        steps_before, steps = steps, plan.next_steps
        drafted[i] = steps
    return lengths, drafted
