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
_REVIEW_ROUNDS = 8  # between two comparisons of drafting with not drafting


@dataclass(frozen=True, slots=True)
class RoundPlan:
    """What a round verifies, whether it ends with drafting, and what is expected of it."""

    load: RoundLoad
    budget: int  # drafted tokens to verify in all
    next_steps: int  # tokens of the block drafted at the end, G; 0: none is drafted
    survival_sum: float  # of the tokens to verify: accepted ones, if confidence is calibrated
    expected_tokens: float  # emitted by all requests together, after correction by what was accepted before
    expected: PartTimes  # after correction by what was measured
    curve: PartTimes  # as profiled: what measurements are compared with

    @property
    def num_tokens(self) -> int:
        """Packed tokens, K."""
        return self.load.num_requests + self.budget


@dataclass(frozen=True, slots=True)
class _Review:
    """What drafting is worth."""

    num_requests: int
    plain_s: float  # a round without drafts
    worth: float  # throughput with drafting / without


class RoundPlanner:
    """Chooses capacity and drafting, round after round; see `plan`.

    Args:
        gamma: tokens of a whole block, G.
        causal: walk the block that is verified and stop at the first drop; else take the argmax over an older one.
        certain: drafts and their confidence are functions of the text, so that the argmax may read the block that is
            verified.
    """

    def __init__(self, clock: RoundClock, *, gamma: int, causal: bool = False, certain: bool = False) -> None:
        self.clock = clock
        self._reads_own_block = causal or certain
        self._search = first_drop_budget if causal else best_budget
        self._gamma = gamma
        self._switch = DraftSwitch()
        self._recent_gain = GainAverage(gamma, window=_CAPACITY_WINDOW)
        self._lasting_gain = GainAverage(gamma, window=_REVIEW_WINDOW)
        self._acceptance = AcceptanceRatio()
        self._drafted = (True, True)  # was the block to be verified drafted, and the one before it
        self._idle_rounds = 0
        self._review: _Review | None = None
        self._rounds_to_review = 0

    @property
    def first_steps(self) -> int:
        """Tokens of the first block of a request that joins now: G, or 0."""
        return self._gamma if self._switch.on else 0

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
                `causal` or `certain` those of that block itself, [R, 0] if it has none.
            caps: [R], drafted tokens that may be verified; 0 for a request without a draft.
            known: [R], which rows of hazards were seen; None: all.

        Raises:
            ProfileError: more requests than the largest profiled batch has room for.
        """
        num_requests = load.num_requests
        is_new = self._drafted[0 if self._reads_own_block else 1]
        seen = hazards if known is None else hazards[known]
        if self._reads_own_block:
            gain = gain_curve(hazards, caps)
        else:
            self._learn(seen, is_new=is_new)
            gain = self._expected_gain(seen, caps, caps if known is None else caps[known])
        gain = self._acceptance.ratio * gain

        drafts = self._drafts_next(load)
        budget = self._best_of(gain, load, drafts=drafts)
        if self._reads_own_block:
            # Only now: whether the next block is drafted is in the objective, and must not depend on this block.
            self._learn(seen, is_new=is_new)
        self._drafted = (drafts, self._drafted[0])
        curve, expected = self.clock.parts(load, num_tokens=num_requests + budget, drafts=drafts)
        return RoundPlan(
            load=load,
            budget=budget,
            next_steps=self._gamma if drafts else 0,
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

    def observe_draft(self, load: RoundLoad, *, draft_s: float) -> None:
        """Seconds that drafting a block for each of a round's own requests took."""
        self.clock.observe_draft(load, measured_s=draft_s)

    def _best_of(self, gain: FloatArray, load: RoundLoad, *, drafts: bool) -> int:
        """The budget that pays best by gain curve `gain` [n + 1], in a round that ends with drafting or without."""
        if len(gain) == 1:
            # Rounds without drafts are many where drafting does not pay, and are to cost no more than plain ones.
            return 0
        most = min(load.num_requests + len(gain) - 1, self.clock.curve.max_batch_tokens)
        step_s = self.clock.step_times_s(load, most_tokens=most)
        round_s = step_s + self.clock.draft_s(load) if drafts else step_s
        return self._search(gain[: len(step_s)], round_s, num_requests=load.num_requests)

    def _expected_gain(
        self, seen: HazardArray, caps: NDArray[np.integer], caps_of_seen: NDArray[np.integer]
    ) -> FloatArray:
        """Gain curve of all requests, of which some have an older block that was seen.

        Requests without one are taken for average ones. Counted as certain to be accepted, they would be the first to
        be verified, and with requests that live for a few dozen rounds that costs several per cent of the throughput.
        """
        candidates = int(np.clip(caps, 0, self._gamma).sum())
        if len(seen) < _CAPACITY_WINDOW:
            gain = self._recent_gain.at(len(caps))
        else:
            gain = rescaled(gain_curve(seen, caps_of_seen), len(caps) / len(seen))
        return gain[: candidates + 1]

    def _learn(self, seen: HazardArray, *, is_new: bool) -> None:
        """Take in hazards [R, G] that were not seen before, as if every block could be verified in full."""
        if not is_new or not seen.size:
            self._idle_rounds += 1
            return
        gain = gain_curve(seen, np.full(len(seen), self._gamma))
        for average in (self._lasting_gain, self._recent_gain):
            average.update(gain, num_requests=len(seen), idle_rounds=self._idle_rounds)
        if self._idle_rounds:
            self._rounds_to_review = 0
        self._idle_rounds = 0

    def _drafts_next(self, load: RoundLoad) -> bool:
        if self._rounds_to_review == 0 or self._review is None or self._review.num_requests != load.num_requests:
            self._review = self._reviewed(load)
            self._rounds_to_review = _REVIEW_ROUNDS
        self._rounds_to_review -= 1
        return self._switch.decide(
            self._review.worth,
            num_requests=load.num_requests,
            round_s=self._review.plain_s,
            probe_s=0.0 if self._switch.on else self.clock.draft_s(load),
        )

    def _reviewed(self, load: RoundLoad) -> _Review:
        """Rounds that draft against rounds that do not, each kept up for ever."""
        num_requests = load.num_requests
        most = min(num_requests * (1 + self._gamma), self.clock.curve.max_batch_tokens)
        step_s = self.clock.step_times_s(load, most_tokens=most)
        gain = self._acceptance.ratio * self._lasting_gain.at(num_requests)[: len(step_s)]
        round_s = step_s[: len(gain)] + self.clock.draft_s(load)
        budget = self._search(gain, round_s, num_requests=num_requests)
        plain_s = float(step_s[0])
        worth = (num_requests + gain[budget]) / round_s[budget] / (num_requests / plain_s)
        return _Review(num_requests, plain_s, float(worth))
