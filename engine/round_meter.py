"""Measures rounds: what the planner learns of times from, and what is told of every round to whoever asks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from dspark.engine.flights import Flight
from dspark.engine.round_marks import RoundMarks

if TYPE_CHECKING:
    from dspark.engine.scheduler.planner import RoundPlanner


@dataclass(frozen=True, slots=True)
class LandedRound:
    """What a round came to."""

    requests: int  # that it was launched for
    still_there: int  # that had not ended since
    batch_tokens: int  # packed tokens that the target ran
    accepted: int  # drafted tokens, of those still there
    emitted: int
    wasted_tokens: int  # packed tokens of those that had ended

    @property
    def accepted_of_all(self) -> int | None:
        """Drafted tokens that would have been accepted, had nobody left."""
        return round(self.accepted * self.requests / self.still_there) if self.still_there else None


@dataclass(frozen=True, slots=True)
class RoundMetrics:
    """One round, as planned and as it was. None: there was no plan, or no measurement; on a GPU a sample of the rounds
    is measured, unless the engine `times_every_round`.

    A plan's time holds the drafting of the block that the next round begins with, a measured one that of its own. The
    measured step holds the time that the device had waited since the round before.
    """

    requests: int
    batch_tokens: int
    bucket: int  # packed tokens that the batch was padded to
    emitted: int
    wasted_tokens: int  # packed tokens of requests that had ended
    drafted_tokens: int  # of all requests; the block that the round began with
    expected_tokens: float | None
    predicted_s: float | None
    predicted_step_s: float | None  # of it the target's step
    measured_s: float | None
    measured_step_s: float | None


RoundListener = Callable[[RoundMetrics], None]

# Marks keep the device from running one graph straight into the next, which rounds of a small model feel. Behind the
# first rounds a few of each period are enough.
_FIRST_ROUNDS, _PERIOD, _TIMED_OF_PERIOD = 64, 48, 3


class RoundMeter:
    """Follows rounds as they land, in order.

    Args:
        every: time every round, not a sample of them.
    """

    def __init__(self, planner: RoundPlanner | None, listener: RoundListener | None, *, every: bool) -> None:
        self._planner = planner
        self._listener = listener
        self._every = every
        self._last_marks: RoundMarks | None = None

    def times(self, index: int) -> bool:
        """Is round `index` of the run to be timed?"""
        if index == 0 or (self._planner is None and self._listener is None):
            # Whatever a first round does for the first time says nothing of the others.
            return False
        return self._every or index < _FIRST_ROUNDS or index % _PERIOD < _TIMED_OF_PERIOD

    def landed(self, flight: Flight, landed: LandedRound) -> None:
        """A round's result was taken in, so the device has passed its marks."""
        plan, marks = flight.order.plan, flight.marks
        parts = None
        # The first round timed of a period does not know how long the device had waited before it.
        if marks is not None and (self._every or self._last_marks is not None or not flight.follows_a_round):
            parts = marks.parts()
            # Between rounds the device waited for the host: that is time which a larger batch does not cost.
            if self._last_marks is not None and flight.follows_a_round:
                gap_s = self._last_marks.gap_s(marks)
                parts = replace(parts, target_s=parts.target_s + gap_s)
        if self._planner is not None and plan is not None:
            self._planner.observe(plan, accepted=landed.accepted_of_all)
            if parts is not None:
                self._planner.observe(plan, target_s=parts.target_s, verify_s=parts.verify_s)
                if flight.order.steps:
                    # The block that this round began with, which was drafted for this round's own requests.
                    self._planner.observe_draft(plan.load, steps=flight.order.steps, draft_s=parts.draft_s)
        if self._listener is not None:
            self._listener(
                RoundMetrics(
                    requests=landed.requests,
                    batch_tokens=landed.batch_tokens,
                    bucket=flight.bucket,
                    emitted=landed.emitted,
                    wasted_tokens=landed.wasted_tokens,
                    drafted_tokens=int(flight.order.drafted.sum()),
                    expected_tokens=None if plan is None else plan.expected_tokens,
                    predicted_s=None if plan is None else plan.expected.round_s,
                    predicted_step_s=None if plan is None else plan.expected.target_s,
                    measured_s=None if parts is None else parts.round_s,
                    measured_step_s=None if parts is None else parts.target_s,
                )
            )
        self._last_marks = marks
