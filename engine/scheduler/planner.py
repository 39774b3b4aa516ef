"""One round's plan: how many tokens to verify, and how many to draft next (arXiv 2607.05147, section 5)."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dspark.engine.scheduler.arrays import FloatArray, HazardArray
from dspark.engine.scheduler.block_gains import RECENT_BLOCKS, BlockGains
from dspark.engine.scheduler.capacity import best_budget, first_drop_budget, gain_curve
from dspark.engine.scheduler.drafting import PROBE_DISTANCE, DraftChoice, draft_lengths
from dspark.engine.scheduler.estimators import AcceptanceRatio
from dspark.engine.scheduler.gain_average import rescaled
from dspark.engine.scheduler.round_time import PartTimes, RoundClock, RoundLoad

_REVIEW_ROUNDS = 32  # between two comparisons of what could be drafted ...
_FIRST_REVIEW_ROUNDS = 8  # ... and between those that rest on too few blocks
_FEWEST_BLOCKS = 32  # that a choice of how much to draft is made on
_SAME_REQUESTS = 1 / 8  # share of the requests that may come or go without another one


@dataclass(frozen=True, slots=True)
class RoundPlan:
    """What a round verifies, how much it drafts at its end, and what is expected of it.

    It goes for later rounds too, if whoever follows it keeps it. Where the next block is a probe, which is drafted to
    see what longer blocks would bring, they have a shorter one, and the expected times are theirs.
    """

    load: RoundLoad
    budget: int  # drafted tokens to verify in all
    next_steps: int  # tokens of the block drafted at the end, at most G; 0: none is drafted
    lasting_steps: int  # of the blocks after it; fewer, if it is a probe
    probe_budget: int  # drafted tokens to verify in all where the block is a probe
    survival_sum: float  # of the tokens to verify: accepted ones, if confidence is calibrated
    expected_tokens: float  # emitted by all requests together, after correction by what was accepted before
    expected: PartTimes  # after correction by what was measured
    curve: PartTimes  # as profiled: what measurements are compared with

    @property
    def num_tokens(self) -> int:
        """Packed tokens, K."""
        return self.load.num_requests + self.budget


@dataclass(frozen=True, slots=True)
class Review:
    """What no drafting and each length of block are worth, in this order."""

    num_requests: int
    plain_s: float  # a round without drafts
    draft_s: tuple[float, ...]  # what the block adds to it
    log_worth: tuple[float, ...]  # log of tokens a second
    probe_budget: int  # tokens to verify of whole blocks


class RoundPlanner:
    """Chooses capacity and drafting, round after round; see `plan`.

    Args:
        gamma: tokens of a whole block, G.
        causal: walk the block that is verified and stop at the first drop; else take the argmax over an older one.
        certain: drafts and their confidence are functions of the text, so that the argmax may read the block that is
            verified.

    Blocks are whole ones or, if the step curve knows what shorter ones cost and drafts are not certain, of the lengths
    that `draft_lengths` names.
    """

    def __init__(self, clock: RoundClock, *, gamma: int, causal: bool = False, certain: bool = False) -> None:
        self.clock = clock
        self._reads_own_block = causal or certain
        self._search = first_drop_budget if causal else best_budget
        self._gamma = gamma
        self._lengths = (gamma,) if certain or clock.curve.draft_one is None else draft_lengths(gamma)
        # A look-up that finds nothing leaves a plain round: nothing but its own time, which is known, is spent on it.
        self._choice = DraftChoice(self._lengths, probe_distance=1 if certain else PROBE_DISTANCE)
        self._gains = BlockGains(self._lengths)
        self._acceptance = AcceptanceRatio()
        self._missed = True  # no block was seen in the round before
        self._review: Review | None = None
        self._rounds_to_review = 0

    @property
    def first_steps(self) -> int:
        """Tokens of a block that no plan came before: as many as it stands at, probes apart; 0: none is drafted."""
        return self._choice.steps

    @property
    def is_informed(self) -> bool:
        """Has it seen blocks enough to choose how much to draft?"""
        return self._gains.blocks >= _FEWEST_BLOCKS

    def plan(
        self,
        hazards: HazardArray,
        caps: NDArray[np.integer],
        load: RoundLoad,
        *,
        known: NDArray[np.bool_] | None = None,
        rounds: int = 1,
    ) -> RoundPlan:
        """Plan the next round of R requests, and those that the plan is kept for.

        Args:
            hazards: [R, k], older than the block to be verified (see `SurvivalHistory.before`), drafted or not, and
                learnt from by whoever took them in; with `causal` or `certain` those of that block itself, [R, 0] if it
                has none, which are learnt from here. k: tokens that were drafted.
            caps: [R], drafted tokens that may be verified; 0 for a request without a draft.
            known: [R], which rows of hazards were seen; None: all.
            rounds: since the last plan, this one included; between them the last one was followed.

        Raises:
            ProfileError: more requests than the largest profiled batch has room for.
        """
        num_requests = load.num_requests
        seen = hazards if known is None else hazards[known]
        if self._reads_own_block:
            gain = gain_curve(hazards, caps)
        else:
            gain = self._expected_gain(seen, caps, caps if known is None else caps[known])
        gain = self._acceptance.ratio * gain

        review = self.review(load)
        self._rounds_to_review -= rounds
        next_steps = self._next_steps(load, review, rounds)
        # A plan by the block itself is for one round. Others are kept, and most of their rounds end without the probe.
        steps = next_steps if self._reads_own_block else self._choice.steps
        budget = self._best_of(gain, load, steps=steps)
        if self._reads_own_block:
            # Only now: how much of the next block is drafted is in the objective, and must not depend on this block.
            self.learn(seen)
        curve, expected = self.clock.parts(load, num_tokens=num_requests + budget, steps=steps)
        return RoundPlan(
            load=load,
            budget=budget,
            next_steps=next_steps,
            lasting_steps=self._choice.steps,
            probe_budget=review.probe_budget,
            survival_sum=float(gain[budget]) / self._acceptance.ratio,
            expected_tokens=num_requests + float(gain[budget]),
            expected=expected,
            curve=curve,
        )

    def review(self, load: RoundLoad) -> Review:
        """What could be drafted, compared anew if the last comparison is long ago.

        `plan` asks for it, and takes twice as long where it is compared then: ask in a round before.
        """
        review = self._review
        if self._rounds_to_review <= 0 or review is None or _differs(load.num_requests, review.num_requests):
            review = self._review = self._reviewed(load)
            self._rounds_to_review = _REVIEW_ROUNDS if self.is_informed else _FIRST_REVIEW_ROUNDS
        return review

    def learn(self, hazards: HazardArray | None) -> None:
        """Take in blocks [R, k] of one round, R or k 0 where none was seen; None: none was drafted either.

        Once each, before a plan that rests on them. With `causal` or `certain`, `plan` does it.
        """
        if hazards is None or not hazards.size:
            self._gains.miss()
            self._missed = True
            return
        self._gains.take_in(hazards)
        if self._missed or hazards.shape[1] > self._choice.steps:
            # What a probe tells is wanted at once.
            self._rounds_to_review = 0
        self._missed = False

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

    def observe_draft(self, load: RoundLoad, *, steps: int, draft_s: float) -> None:
        """Seconds that drafting `steps` tokens for each of a round's own requests took."""
        self.clock.observe_draft(load, steps=steps, measured_s=draft_s)

    def _best_of(self, gain: FloatArray, load: RoundLoad, *, steps: int) -> int:
        """The budget that pays best by gain curve `gain` [n + 1], in a round that ends with drafting `steps` tokens."""
        if len(gain) == 1:
            # Rounds without drafts are many where drafting does not pay, and are to cost no more than plain ones.
            return 0
        most = min(load.num_requests + len(gain) - 1, self.clock.curve.max_batch_tokens)
        step_s = self.clock.step_times_s(load, most_tokens=most)
        round_s = step_s + self.clock.draft_s(load, steps) if steps else step_s
        return self._search(gain[: len(step_s)], round_s, num_requests=load.num_requests)

    def _expected_gain(
        self, seen: HazardArray, caps: NDArray[np.integer], caps_of_seen: NDArray[np.integer]
    ) -> FloatArray:
        """Gain curve of all requests, of which some have an older block that was seen.

        Requests without one are taken for average ones. Counted as certain to be accepted, they would be the first to
        be verified, and with requests that live for a few dozen rounds that costs several per cent of the throughput.
        Older blocks tell of as many tokens as they have: where the block at hand is shorter, its caps end what counts
        of them; where it is longer, all requests are taken for average ones, by the last blocks that were as long.
        """
        most_tokens = int(caps.max(initial=0))
        if len(seen) < RECENT_BLOCKS or seen.shape[1] < most_tokens:
            gain = self._gains.recent(most_tokens, len(caps))
        else:
            gain = rescaled(gain_curve(seen, caps_of_seen), len(caps) / len(seen))
        candidates = int(np.clip(caps, 0, self._gamma).sum())
        return gain[: candidates + 1]

    def _next_steps(self, load: RoundLoad, review: Review, rounds: int) -> int:
        if not self.is_informed:
            return self._choice.steps
        return self._choice.decide(
            review.log_worth,
            num_requests=load.num_requests,
            round_s=review.plain_s,
            draft_s=review.draft_s,
            rounds=rounds,
        )

    def _reviewed(self, load: RoundLoad) -> Review:
        """Rounds of each kind, kept up for ever."""
        self._gains.digest()
        num_requests = load.num_requests
        most = min(num_requests * (1 + self._gamma), self.clock.curve.max_batch_tokens)
        step_s = self.clock.step_times_s(load, most_tokens=most)
        plain_s = float(step_s[0])
        draft_s, log_worth = [0.0], [math.log(num_requests / plain_s)]
        for length in self._lengths:
            draft_s.append(self.clock.draft_s(load, length))
            gain = self._acceptance.ratio * self._gains.lasting(length, num_requests)[: len(step_s)]
            round_s = step_s[: len(gain)] + draft_s[-1]
            budget = self._search(gain, round_s, num_requests=num_requests)
            log_worth.append(math.log((num_requests + gain[budget]) / round_s[budget]))
        # The last length is a whole block's, as a probe is.
        return Review(num_requests, plain_s, tuple(draft_s), tuple(log_worth), probe_budget=int(budget))


def _differs(num_requests: int, reviewed: int) -> bool:
    return abs(num_requests - reviewed) > _SAME_REQUESTS * reviewed
