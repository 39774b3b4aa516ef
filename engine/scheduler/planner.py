"""One round's plan: how many tokens to verify, and whether to draft the next block (arXiv 2607.05147, section 5)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dspark.engine.scheduler.arrays import FloatArray, HazardArray
from dspark.engine.scheduler.capacity import best_budget, first_drop_budget, gain_curve
from dspark.engine.scheduler.drafting import DraftSwitch
from dspark.engine.scheduler.estimators import AcceptanceRatio
from dspark.engine.scheduler.gain_average import GainAverage, rescaled
from dspark.engine.scheduler.round_time import PartTimes, RoundClock, RoundLoad

# Blocks that are averaged: for a capacity few, since requests differ and change; for whether to draft, which is to be
# decided seldom, many.
_CAPACITY_WINDOW, _REVIEW_WINDOW = 16, 256
_REVIEW_ROUNDS = 8  # between two comparisons of drafting more, less or nothing


@dataclass(frozen=True, slots=True)
class RoundPlan:
    """What a round verifies, whether it ends with drafting, and what is expected of it."""

    load: RoundLoad
    budget: int  # drafted tokens to verify in all
    next_steps: int  # Markov steps of the block drafted at the end; 0: none is drafted
    survival_sum: float  # of the tokens to verify: accepted ones, if confidence is calibrated
    expected_tokens: float  # emitted by all requests together, after correction by what was accepted before
    expected: PartTimes  # after correction by what was measured
    curve: PartTimes  # as profiled: what measurements are compared with

    @property
    def num_tokens(self) -> int:
        """Packed tokens, K."""
        return self.load.num_requests + self.budget


class RoundPlanner:
    """Chooses capacity and drafting, round after round; see `plan`.

    Args:
        gamma: tokens of a whole block, G.
        causal: walk the block that is verified and stop at the first drop; else take the argmax over an older one.
        certain: drafts and their confidence are functions of the text, so that the argmax may read the block that is
            verified.
        step_options: numbers of Markov steps that a block may be drafted with, ascending, the last is G; None: G alone.
        drafting_is_optional: False: every round drafts a whole block.
    """

    def __init__(
        self,
        clock: RoundClock,
        *,
        gamma: int,
        causal: bool = False,
        certain: bool = False,
        step_options: tuple[int, ...] | None = None,
        drafting_is_optional: bool = True,
    ) -> None:
        self.clock = clock
        self._reads_own_block = causal or certain
        self._search = first_drop_budget if causal else best_budget
        self._options = (gamma,) if step_options is None else step_options
        assert self._options[-1] == gamma and self._options[0] > 0 and list(self._options) == sorted(self._options)
        self._switch = DraftSwitch(self._options) if drafting_is_optional else None
        self._recent_gain = GainAverage(gamma, window=_CAPACITY_WINDOW)
        self._gains = {steps: GainAverage(steps, window=_REVIEW_WINDOW) for steps in self._options}
        self._acceptance = AcceptanceRatio()
        self._planned_steps = (gamma, gamma)  # of the block to be verified, and of the one before it
        self._idle_rounds = 0
        self._throughput: dict[int, float] = {}
        self._reviewed_requests = 0
        self._rounds_to_review = 0

    @property
    def first_steps(self) -> int:
        """Markov steps of the first block of a request that joins now."""
        return self._options[-1] if self._switch is None else self._switch.steps

    def plan(
        self,
        hazards: HazardArray,
        caps: NDArray[np.integer],
        load: RoundLoad,
        *,
        known: NDArray[np.bool_] | None = None,
    ) -> RoundPlan:
        """Plan the next round of R requests.

        Args:
            hazards: [R, G], older than the block to be verified (see `SurvivalHistory.before`), drafted or not; with
                `causal` or `certain` [R, k] of that block itself.
            caps: [R], drafted tokens that may be verified; 0 for a request without a draft.
            known: [R], which rows of hazards were seen; None: all.

        Raises:
            ProfileError: more requests than the largest profiled batch has room for.
        """
        num_requests = load.num_requests
        is_new = self._planned_steps[0 if self._reads_own_block else 1] > 0
        seen = hazards if known is None else hazards[known]
        if self._reads_own_block:
            gain = gain_curve(hazards, caps)
        else:
            self._learn(seen, is_new=is_new)
            gain = self._expected_gain(seen, caps, caps if known is None else caps[known])
        most = min(num_requests + len(gain) - 1, self.clock.curve.max_batch_tokens)
        step_s = self.clock.step_times_s(load, most_tokens=most)
        gain = self._acceptance.ratio * gain[: len(step_s)]

        next_steps = self._next_steps(load)
        round_s = step_s + self.clock.draft_s(load, steps=next_steps)
        budget = self._search(gain, round_s, num_requests=num_requests)
        if self._reads_own_block:
            # Only now: whether the next block is drafted is in the objective, and must not depend on this block.
            self._learn(seen, is_new=is_new)
        self._planned_steps = (next_steps, self._planned_steps[0])
        curve, expected = self.clock.parts(load, num_tokens=num_requests + budget, steps=next_steps)
        return RoundPlan(
            load=load,
            budget=budget,
            next_steps=next_steps,
            survival_sum=float(gain[budget]) / self._acceptance.ratio,
            expected_tokens=num_requests + float(gain[budget]),
            expected=expected,
            curve=curve,
        )

    def observe(
        self,
        plan: RoundPlan,
        *,
        target_s: float | None = None,
        verify_s: float | None = None,
        draft_s: float | None = None,
        accepted: int | None = None,
    ) -> None:
        """Seconds that the parts of a planned round took, and its accepted tokens in all; None: not measured."""
        clock, curve = self.clock, plan.curve
        if accepted is not None and plan.budget and clock.adapt:
            self._acceptance.observe(expected=plan.survival_sum, accepted=accepted)
        if target_s is not None:
            clock.observe_target(plan.num_tokens, predicted_s=curve.target_s, measured_s=target_s)
        if verify_s is not None:
            clock.observe_verify(plan.load, predicted_s=curve.verify_s, measured_s=verify_s)
        if draft_s is not None:
            clock.observe_draft(plan.load, predicted_s=curve.draft_s, measured_s=draft_s)

    def _expected_gain(
        self, seen: HazardArray, caps: NDArray[np.integer], caps_of_seen: NDArray[np.integer]
    ) -> FloatArray:
        """Gain curve of all requests, of which some have an older block that was seen.

        Requests without one are taken for average ones. Counted as certain to be accepted, they would be the first to
        be verified, and with requests that live for a few dozen rounds that costs several per cent of the throughput.
        """
        candidates = int(np.clip(caps, 0, self._options[-1]).sum())
        if len(seen) < _CAPACITY_WINDOW:
            gain = self._recent_gain.at(len(caps))
        else:
            gain = rescaled(gain_curve(seen, caps_of_seen), len(caps) / len(seen))
        return gain[: candidates + 1]

    def _learn(self, seen: HazardArray, *, is_new: bool) -> None:
        """Take in survival [R, k] that was not seen before, as if every block could be verified in full."""
        if not is_new or not len(seen):
            self._idle_rounds += 1
            return
        for steps, average in self._gains.items():
            if steps <= seen.shape[1]:
                gain = gain_curve(seen, np.full(len(seen), steps))
                average.update(gain, num_requests=len(seen), idle_rounds=self._idle_rounds)
                if steps == self._options[-1]:
                    self._recent_gain.update(gain, num_requests=len(seen), idle_rounds=self._idle_rounds)
        if self._idle_rounds:
            self._rounds_to_review = 0
        self._idle_rounds = 0

    def _next_steps(self, load: RoundLoad) -> int:
        if self._switch is None:
            return self._options[-1]
        if self._rounds_to_review == 0 or self._reviewed_requests != load.num_requests:
            self._throughput = self._review(load)
            self._reviewed_requests, self._rounds_to_review = load.num_requests, _REVIEW_ROUNDS
        self._rounds_to_review -= 1
        present = self._switch.steps
        probe_s = self.clock.draft_s(load, steps=self._options[-1]) - self.clock.draft_s(load, steps=present)
        return self._switch.decide(
            self._throughput,
            num_requests=load.num_requests,
            round_s=load.num_requests / self._throughput[0],
            probe_s=probe_s,
        )

    def _review(self, load: RoundLoad) -> dict[int, float]:
        """Tokens a second of every number of Markov steps, kept up for ever."""
        num_requests = load.num_requests
        most = min(num_requests * (1 + self._options[-1]), self.clock.curve.max_batch_tokens)
        step_s = self.clock.step_times_s(load, most_tokens=most)
        result = {0: num_requests / float(step_s[0])}
        for steps, average in self._gains.items():
            gain = self._acceptance.ratio * average.at(num_requests)[: len(step_s)]
            round_s = step_s[: len(gain)] + self.clock.draft_s(load, steps=steps)
            budget = self._search(gain, round_s, num_requests=num_requests)
            result[steps] = float((num_requests + gain[budget]) / round_s[budget])
        return result
