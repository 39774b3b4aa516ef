"""From policies to orders: what each round drafts and verifies, decided on what may be known when it is launched."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import numpy as np

from dspark.engine.ngram.lookup import Lookup
from dspark.engine.ngram.scheduling import LookupScheduler
from dspark.engine.orders import RoundOrder
from dspark.engine.round_bounds import round_load, useful_steps
from dspark.engine.scheduler.allocation import allocate
from dspark.engine.scheduler.planner import RoundPlan, RoundPlanner
from dspark.engine.scheduler.policies import LengthPolicy, Planned, ScheduleView
from dspark.engine.scheduler.survival import hazards
from dspark.engine.slots import SlotTable
from dspark.engine.transfer import Download

if TYPE_CHECKING:
    from dspark.engine.engine import Engine
    from dspark.engine.proposals import DraftOutput


class RoundScheduler(Protocol):
    """Orders rounds, one after the other."""

    def order(self, rows: np.ndarray) -> RoundOrder:
        """The next round of slots `rows` [R], before its block is drafted."""

    def revise(self, rows: np.ndarray, order: RoundOrder, draft: DraftOutput) -> RoundOrder:
        """The same with the block drafted. Only policies that read it wait for the device here."""


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
        return PlannedScheduler(slots, engine.planner, policy, temperatures=engine.confidence_temperatures)
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

    def _capped(self, view: ScheduleView) -> np.ndarray:
        # Whatever a policy wants: past its cap a request has neither pages nor tokens left.
        return np.clip(self._policy.lengths(view), 0, view.caps)


class PlannedScheduler:
    """Follows a planner, which knows how long a round takes.

    `async`: the budget rests on the block before, whose confidence came back while that round ran, and the device
    spends it on the block at hand. `causal`: both rest on the block at hand, which the host waits for.
    """

    def __init__(self, slots: SlotTable, planner: RoundPlanner, policy: Planned, *, temperatures: np.ndarray) -> None:
        self._slots = slots
        self._planner = planner
        self._causal = policy.causal
        self._temperatures = temperatures  # [G]
        self._next_steps: int | None = None
        # Slots whose newest block's confidence is on its way (None: they had no block).
        self._awaited: tuple[np.ndarray, Download | None] | None = None

    def order(self, rows: np.ndarray) -> RoundOrder:
        """The next round of slots `rows` [R], before its block is drafted."""
        planned = self._planner.first_steps if self._next_steps is None else self._next_steps
        steps, caps = useful_steps(self._slots, rows, planned)
        history = self._slots.history
        self._process()
        history.schedule(rows, drafted=steps > 0)
        if self._causal:
            if steps > 0:
                return RoundOrder(steps, caps)
            history.process(rows, None)
            return RoundOrder(0, caps, plan=self._plan(rows, np.zeros((len(rows), 0), dtype=np.int32), caps))
        if steps == 0:
            self._awaited = rows, None
        view = history.before(rows)
        plan = self._plan(rows, view.hazards, caps, known=view.known)
        return RoundOrder(steps, caps, budget=plan.budget, plan=plan)

    def revise(self, rows: np.ndarray, order: RoundOrder, draft: DraftOutput) -> RoundOrder:
        """The same with the block drafted."""
        confidence = Download(draft.confidence_logits)
        if not self._causal:
            self._awaited = rows, confidence
            return order
        found = hazards(confidence.wait(), self._temperatures)
        self._slots.history.process(rows, found)
        plan = self._plan(rows, found, order.lengths)
        return RoundOrder(order.steps, allocate(found, order.lengths, budget=plan.budget), plan=plan)

    def _process(self) -> None:
        """Take in the confidence of the round before, of those requests that are still there."""
        if self._awaited is None:
            return
        (rows, confidence), history = self._awaited, self._slots.history
        self._awaited = None
        # Whoever left or lost its cache meanwhile has a history of its own again, with nothing awaited.
        there = history.scheduled[rows] > history.processed[rows]
        found = None if confidence is None else hazards(confidence.wait()[there], self._temperatures)
        history.process(rows[there], found)

    def _plan(
        self, rows: np.ndarray, known_hazards: np.ndarray, caps: np.ndarray, *, known: np.ndarray | None = None
    ) -> RoundPlan:
        plan = self._planner.plan(known_hazards, caps, round_load(self._slots, rows), known=known)
        self._next_steps = plan.next_steps
        return plan
