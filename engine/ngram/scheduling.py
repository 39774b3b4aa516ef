"""Orders rounds whose blocks the host looks up."""

from __future__ import annotations

import numpy as np

from dspark.engine.ngram.lookup import Lookup
from dspark.engine.orders import RoundOrder
from dspark.engine.proposals import DraftOutput
from dspark.engine.round_bounds import is_alike, round_load, useful_steps
from dspark.engine.scheduler.allocation import allocate
from dspark.engine.scheduler.planner import RoundPlan, RoundPlanner
from dspark.engine.scheduler.policies import LengthPolicy, Planned, ScheduleView
from dspark.engine.scheduler.survival import hazards
from dspark.engine.slots import SlotTable

# A plan is kept for so long while drafting does not pay: the few tenths of a millisecond that one takes the host are
# then too little to notice, on a GPU too.
_REST_S = 0.1


class LookupScheduler:
    """Looks the next block up, and decides over it at once.

    Nothing in a block is random given the text, so that the block's own survival may decide how much of it is verified:
    there is nothing to anticipate, and no older block to rest on. `async` takes the best budget anywhere,
    `causal` the first before a drop.

    Rounds of a run for which drafting does not pay are plain ones: one plan goes for several of them, and whether the
    next block is drafted to see what it would bring is decided as often.
    """

    def __init__(
        self,
        slots: SlotTable,
        policy: LengthPolicy | Planned,
        lookup: Lookup,
        *,
        planner: RoundPlanner | None,
        gamma: int,
        temperatures: np.ndarray,
    ) -> None:
        self._slots = slots
        self._policy = policy
        self._lookup = lookup
        self._planner = planner
        self._next_steps = policy.steps(gamma) if planner is None else planner.first_steps
        self._temperatures = temperatures  # [G]
        self._resting_plan: RoundPlan | None = None  # of a round that neither verifies nor drafts
        self._rounds_kept = 0  # that it is yet to be kept for
        self._rounds = 1  # since the newest plan, the next one included

    def order(self, rows: np.ndarray) -> RoundOrder:
        """The next round of slots `rows` [R], with its block."""
        if (plan := self._kept_plan(rows)) is not None:
            return RoundOrder(0, np.zeros(len(rows), dtype=np.int64), plan=plan)
        steps, caps = useful_steps(self._slots, rows, self._next_steps)
        proposals = self._lookup.propose(rows, steps) if steps else None
        confidence = np.zeros((len(rows), 0), dtype=np.float32)
        if proposals is not None:
            caps, confidence = np.minimum(caps, proposals.counts), proposals.confidence_logits
        temperatures = self._temperatures[:steps]
        if self._planner is None:
            assert not isinstance(self._policy, Planned), "a planned policy has a planner"
            view = ScheduleView(caps=caps, confidence_logits=confidence, temperatures=temperatures)
            lengths = np.clip(self._policy.lengths(view), 0, caps) if steps else caps
            return RoundOrder(steps, lengths, proposals=proposals)
        found = hazards(confidence, temperatures)
        plan = self._planner.plan(found, caps, round_load(self._slots, rows), rounds=self._rounds)
        self._rounds, self._next_steps = 1, plan.next_steps
        rests = steps == 0 and plan.next_steps == 0
        self._resting_plan = plan if rests else None
        self._rounds_kept = int(_REST_S / plan.expected.round_s) if rests else 0
        lengths = allocate(found, caps, budget=plan.budget)
        return RoundOrder(steps, lengths, plan=plan, proposals=proposals)

    def revise(self, rows: np.ndarray, order: RoundOrder, draft: DraftOutput) -> RoundOrder:
        """The same: it was known all along."""
        return order

    def look_ahead(self, rows: np.ndarray) -> None:
        """Nothing: every round rests on the text that the one before gave."""

    def _kept_plan(self, rows: np.ndarray) -> RoundPlan | None:
        """The plan of a rest, if it goes on for the round of slots `rows` [R]."""
        plan = self._resting_plan
        if plan is None or self._rounds_kept == 0 or not is_alike(self._slots, rows, plan.load):
            return None
        self._rounds_kept -= 1
        self._rounds += 1
        return plan
