"""From policies to orders: what each round drafts and verifies, decided on what may be known when it is launched."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np

from dspark.engine.ngram.lookup import Lookup
from dspark.engine.ngram.scheduling import LookupScheduler
from dspark.engine.orders import RoundOrder
from dspark.engine.round_bounds import is_alike, round_load, useful_steps
from dspark.engine.scheduler.allocation import allocate
from dspark.engine.scheduler.block_gains import RECENT_BLOCKS
from dspark.engine.scheduler.history import HistoryView
from dspark.engine.scheduler.planner import RoundPlan, RoundPlanner
from dspark.engine.scheduler.policies import LengthPolicy, Planned, ScheduleView
from dspark.engine.scheduler.survival import hazards
from dspark.engine.slots import SlotTable
from dspark.engine.transfer import Download

if TYPE_CHECKING:
    from dspark.engine.engine import Engine
    from dspark.engine.proposals import DraftOutput


# A plan takes the host some tenths of a millisecond, a good part of a short round: kept for so long, it takes little.
_PLAN_LIFE_S = 8e-3
# Few requests' blocks tell little each, so that one more is looked at in so many rounds; more costs the host too much.
_ROUNDS_BETWEEN_LOOKS = 4
# Share by which the number of requests may differ from a plan's until the next one is made.
_SIMILAR_LOAD = 1 / 4
# Share of the next blocks' tokens that a plan to be kept has room for at least: fewer mean that requests are ending.
_WHOLE_BLOCKS = 3 / 4


class RoundScheduler(Protocol):
    """Orders rounds, one after the other."""

    def order(self, rows: np.ndarray) -> RoundOrder:
        """The next round of slots `rows` [R], before its block is drafted."""

    def revise(self, rows: np.ndarray, order: RoundOrder, draft: DraftOutput) -> RoundOrder:
        """The same with the block drafted. Only policies that read it wait for the device here."""

    def look_ahead(self, rows: np.ndarray) -> None:
        """The ordered round of slots `rows` [R] is launched: decide on those to come while the device works on it."""


def make_scheduler(engine: Engine, slots: SlotTable) -> RoundScheduler:
    """The one that the engine's policy asks for."""
    policy = engine.policy
    if engine.ngram is not None:
        return LookupScheduler(
            slots,
            policy,
            Lookup(slots, engine.ngram, learns=engine.config.adapt),
            planner=engine.planner,
            gamma=engine.gamma,
            temperatures=engine.confidence_temperatures,
        )
    if isinstance(policy, Planned):
        assert engine.planner is not None, "a planned policy has a planner"
        scheduler = CausalScheduler if policy.causal else AsyncScheduler
        return scheduler(slots, engine.planner, temperatures=engine.confidence_temperatures)
    return PolicyScheduler(
        slots,
        policy,
        gamma=engine.gamma if engine.drafter is not None and policy.drafts else 0,
        temperatures=engine.confidence_temperatures,
    )


class PolicyScheduler:
    """Follows a policy that looks at one round alone."""

    def __init__(self, slots: SlotTable, policy: LengthPolicy, *, gamma: int, temperatures: np.ndarray) -> None:
        self._slots = slots
        self._policy = policy
        self._steps = policy.steps(gamma) if gamma else 0
        self._temperatures = temperatures  # [G]

    def order(self, rows: np.ndarray) -> RoundOrder:
        """The next round of slots `rows` [R], before its block is drafted."""
        steps, caps = useful_steps(self._slots, rows, self._steps)
        if steps == 0 or self._policy.reads_confidence:
            return RoundOrder(steps, caps)
        # Nothing of the block is needed on the host, so the device need not be waited for.
        nothing = np.zeros((len(rows), 0), dtype=np.float32)
        view = ScheduleView(caps=caps, confidence_logits=nothing, temperatures=np.zeros(0))
        return RoundOrder(steps, self._capped(view))

    def revise(self, rows: np.ndarray, order: RoundOrder, draft: DraftOutput) -> RoundOrder:
        """The same with the block drafted."""
        if not self._policy.reads_confidence:
            return order
        view = ScheduleView(
            caps=order.lengths,
            confidence_logits=Download(draft.confidence_logits).wait(),  # [R, steps]
            temperatures=self._temperatures[: order.steps],
        )
        return RoundOrder(order.steps, self._capped(view))

    def look_ahead(self, rows: np.ndarray) -> None:
        """Nothing: every round is looked at alone."""

    def _capped(self, view: ScheduleView) -> np.ndarray:
        # Whatever a policy wants: past its cap a request has neither pages nor tokens left.
        return np.clip(self._policy.lengths(view), 0, view.caps)


class CausalScheduler:
    """Follows a planner that reads the very block that it plans for, which the host waits for."""

    def __init__(self, slots: SlotTable, planner: RoundPlanner, *, temperatures: np.ndarray) -> None:
        self._slots = slots
        self._planner = planner
        self._temperatures = temperatures  # [G]
        self._next_steps = planner.first_steps

    def order(self, rows: np.ndarray) -> RoundOrder:
        """The next round of slots `rows` [R], before its block is drafted."""
        steps, caps = useful_steps(self._slots, rows, self._next_steps)
        plan = None if steps else self._plan(rows, np.zeros((len(rows), 0), dtype=np.int32), caps)
        return RoundOrder(steps, caps, plan=plan)

    def revise(self, rows: np.ndarray, order: RoundOrder, draft: DraftOutput) -> RoundOrder:
        """The same with the block drafted."""
        found = hazards(Download(draft.confidence_logits).wait(), self._temperatures)
        plan = self._plan(rows, found, order.lengths)
        return RoundOrder(order.steps, allocate(found, order.lengths, budget=plan.budget), plan=plan)

    def look_ahead(self, rows: np.ndarray) -> None:
        """Nothing: no block is there that a round to come could be planned by."""

    def _plan(self, rows: np.ndarray, found: np.ndarray, caps: np.ndarray) -> RoundPlan:
        plan = self._planner.plan(found, caps, round_load(self._slots, rows))
        self._next_steps = plan.next_steps
        return plan


@dataclass(frozen=True, slots=True)
class _Awaited:
    """A block whose confidence is under way to the host."""

    rows: np.ndarray  # [R], slots
    confidence: Download | None  # None: they had no block


class AsyncScheduler:
    """Follows a planner that plans a round by earlier blocks, so that the host need not wait for the round's own.

    A plan is how many drafted tokens are verified in all; the device spends that on the block at hand. What it rests on
    changes slowly, so a plan that drafts as much as the one before is kept for a few milliseconds, as long as there are
    about as many requests. A probe, one longer block, is drafted amid its rounds and does not end it.

    A block's confidence takes three steps: its round's `order` asks for it, `revise` has it copied to the host, and a
    later round takes it in. One is under way at a time. Where the plan still goes, `look_ahead` of a later round takes
    the block in while the device works, learns from it and, at the plan's end, makes the next plan of it, for rounds
    whose blocks are yet to be drafted. Where no plan goes, `order` takes in what is under way, asks for the block at
    hand, and plans by what is older.
    """

    def __init__(self, slots: SlotTable, planner: RoundPlanner, *, temperatures: np.ndarray) -> None:
        self._slots = slots
        self._planner = planner
        self._temperatures = temperatures  # [G]
        self._plan: RoundPlan | None = None  # the newest
        self._rounds_kept = 0  # that it is yet to be kept for
        self._rounds = 0  # ordered since it was made
        self._owes_probe = False  # is its probe yet to be drafted
        self._reads_block = False  # is the confidence of the block at hand wanted
        self._awaited: _Awaited | None = None

    def order(self, rows: np.ndarray) -> RoundOrder:
        """The next round of slots `rows` [R], before its block is drafted."""
        self._rounds += 1
        steps, caps = useful_steps(self._slots, rows, self._next_steps())
        if self._plan is not None and self._goes_for(self._plan, rows):
            return self._kept_order(self._plan, rows, steps, caps)
        awaited = self._awaited
        if awaited is not None:
            self._take_in(awaited)
        self._ask_for_block(rows, steps)
        view = self._slots.history.before(rows)
        if awaited is not None:
            self._learn(awaited, view)
        plan = self._new_plan(rows, view, caps)
        return RoundOrder(steps, caps, budget=plan.budget, plan=plan)

    def revise(self, rows: np.ndarray, order: RoundOrder, draft: DraftOutput) -> RoundOrder:
        """The same with the block drafted."""
        if self._reads_block:
            self._awaited = _Awaited(rows, Download(draft.confidence_logits))
        return order

    def look_ahead(self, rows: np.ndarray) -> None:
        """The round is launched: learn from an older block, and replace a plan at its end.

        The round at hand was launched by the old plan, so its block may not come into the new one any more than those
        of the rounds that the new one will be for.
        """
        if self._reads_block:
            return
        if (awaited := self._awaited) is None:
            if self._rounds == 1:
                # Where block lengths are to be compared anew: not in the round that makes the next plan.
                self._planner.review(round_load(self._slots, rows))
            return
        self._take_in(awaited)
        view = self._slots.history.latest(rows)
        self._learn(awaited, view)
        if not self._rounds_kept:
            assert self._plan is not None, "the round at hand was ordered by one"
            # For rounds to come: requests that end now are followed by others.
            self._new_plan(rows, view, np.full(len(rows), self._plan.lasting_steps))

    def _next_steps(self) -> int:
        """Tokens of the next block, 0 for none."""
        if self._plan is None:
            return self._planner.first_steps
        # What a probe is for is its own confidence: in a plan that is kept it comes when no other is under way.
        waits = self._rounds_kept > 0 and self._awaited is not None
        return self._plan.next_steps if self._owes_probe and not waits else self._plan.lasting_steps

    def _goes_for(self, plan: RoundPlan, rows: np.ndarray) -> bool:
        """May the newest plan be followed in a round of slots `rows` [R]?"""
        return self._rounds_kept > 0 and is_alike(self._slots, rows, plan.load, share=_SIMILAR_LOAD)

    def _kept_order(self, plan: RoundPlan, rows: np.ndarray, steps: int, caps: np.ndarray) -> RoundOrder:
        alike = is_alike(self._slots, rows, plan.load)
        if alike:
            self._rounds_kept -= 1
        else:
            # The next plan is wanted as soon as there is a block to rest on.
            self._rounds_kept = 0 if self._awaited is not None else 1
        ends = self._rounds_kept <= 1
        is_probe = steps > plan.lasting_steps
        if is_probe:
            self._owes_probe = False
        self._reads_block = False
        # Where nobody has a use for a block the plan waits for those that come next.
        tells = steps >= plan.lasting_steps
        looks = len(rows) < RECENT_BLOCKS and self._rounds % _ROUNDS_BETWEEN_LOOKS == 0
        if self._awaited is None and tells and (ends or is_probe or looks):
            self._ask_for_block(rows, steps)
        if ends and (self._reads_block or self._awaited is None):
            # Kept for one round more, behind which the confidence is there.
            self._rounds_kept = 1
        budget = plan.probe_budget if is_probe else max(plan.num_tokens - len(rows), 0)
        budget = min(budget, int(caps.sum()))
        # Of other requests or fewer tokens, what it expects is not what they give: nothing is to be learned from that.
        as_planned = alike and not is_probe and len(rows) + budget == plan.num_tokens
        return RoundOrder(steps, caps, budget=budget, plan=plan if as_planned else None)

    def _ask_for_block(self, rows: np.ndarray, steps: int) -> None:
        """The confidence of the block that is about to be drafted, or that there is none, is wanted."""
        self._reads_block = True
        self._slots.history.schedule(rows, drafted=steps > 0)
        if steps == 0:
            self._awaited = _Awaited(rows, None)

    def _take_in(self, awaited: _Awaited) -> None:
        """Wait for the confidence that is under way, and remember it of those requests that are still there."""
        self._awaited = None
        rows, confidence, history = awaited.rows, awaited.confidence, self._slots.history
        # Whoever left or lost its cache meanwhile has a history of its own again, with nothing awaited.
        there = history.scheduled[rows] > history.processed[rows]
        found = None if confidence is None else hazards(confidence.wait()[there], self._temperatures)
        history.process(rows[there], found)

    def _learn(self, awaited: _Awaited, view: HistoryView) -> None:
        """Have the planner learn from what was taken in, as far as a plan may rest on it."""
        self._planner.learn(None if awaited.confidence is None else view.hazards[view.known])

    def _new_plan(self, rows: np.ndarray, view: HistoryView, caps: np.ndarray) -> RoundPlan:
        load = round_load(self._slots, rows)
        plan = self._planner.plan(view.hazards, caps, load, known=view.known, rounds=self._rounds)
        self._rounds = 0
        self._owes_probe = plan.next_steps > plan.lasting_steps
        was_steady = self._plan is not None and self._plan.lasting_steps == plan.lasting_steps
        # At first every block is looked at: how much to draft is not chosen on less.
        keeps = was_steady and self._planner.is_informed
        # A plan for requests that end is none for those that follow them.
        lasts = int(caps.sum()) >= _WHOLE_BLOCKS * len(rows) * plan.lasting_steps
        self._rounds_kept = int(_PLAN_LIFE_S / plan.expected.round_s) if keeps and lasts else 0
        self._plan = plan
        return plan
