"""How long a round would take at each batch size (arXiv 2607.05147, section 5.1, SPS)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dspark.engine.scheduler.arrays import FloatArray
from dspark.engine.scheduler.estimators import RatioEstimator
from dspark.profiles import StepCurve

# A bucket that has not run yet may be this much faster than predicted, or a wrong prediction would never be found out.
_DOUBT = 0.05
_DOUBTFUL_SAMPLES = 2.0


@dataclass(frozen=True, slots=True)
class RoundLoad:
    """The requests of a round, apart from how many of their drafted tokens are verified."""

    num_requests: int
    context_tokens: int  # cache rows visible before the round's own tokens, summed over the requests
    sampled: bool = False  # does any row sample; else all are greedy
    longest_context: int | None = None  # the longest request's visible rows; None: the profile's reference


@dataclass(frozen=True, slots=True)
class PartTimes:
    """Seconds of a round's parts: by the step curve, expected after correction, or measured."""

    target_s: float
    verify_s: float
    draft_s: float  # 0 if no block is drafted

    @property
    def round_s(self) -> float:
        """Seconds of the whole round."""
        return self.target_s + self.verify_s + self.draft_s


class RoundClock:
    """Predicts the times of a round's parts from a step curve and corrects them by the run's own measurements.

    Args:
        curve: the profile's.
        adapt: False: measurements are ignored.
    """

    def __init__(self, curve: StepCurve, *, adapt: bool = True) -> None:
        self.curve = curve
        self.adapt = adapt
        self._target = RatioEstimator(len(curve.target.buckets))
        # A bucket of requests and a number of tokens each; all share what is known of none in particular.
        blocks = 0 if curve.draft is None else curve.gamma * len(curve.draft.buckets)
        self._draft = {True: RatioEstimator(blocks), False: RatioEstimator(blocks)}
        self._verify = {
            True: RatioEstimator(len(curve.verify_sampled.buckets)),
            False: RatioEstimator(len(curve.verify_greedy.buckets)),
        }
        # Look-ups that a round repeats: a few microseconds each, beside rounds of a few hundred.
        self._verify_lines: dict[tuple[int, bool], tuple[int, float, float]] = {}
        self._draft_index: dict[int, int] = {}
        self._draft_curve: tuple[RoundLoad | None, dict[int, float]] = (None, {})

    def step_times_s(self, load: RoundLoad, *, most_tokens: int) -> FloatArray:
        """Target step and verification of batches of R, R + 1 ... `most_tokens` packed tokens, without drafting.

        Always positive; and under one and the same load no bucket is faster than a smaller one by more than the step
        curve itself says.
        """
        first, last = self.curve.target.index_of([load.num_requests, most_tokens]).tolist()
        buckets = self.curve.target.buckets[first : last + 1]
        # A bucket's times lie on a line: two of its batch sizes give all of them.
        starts = np.concatenate([[load.num_requests], buckets[:-1] + 1])
        ends = np.minimum(buckets, most_tokens)
        unloaded_s, load_s = self.curve.step_lines(
            ends, num_requests=load.num_requests, longest_context=load.longest_context
        )
        begin_s, end_s, full_s = (
            unloaded_s + load_s * (load.context_tokens + tokens) for tokens in (starts, ends, most_tokens)
        )
        ratio = self._ratios(full_s, first)
        width = ends - starts + 1
        slope = ratio * (end_s - begin_s) / np.maximum(width - 1, 1)
        offset = np.arange(most_tokens - load.num_requests + 1)
        times = np.repeat(ratio * begin_s - slope * (starts - load.num_requests), width)
        times += np.repeat(slope, width) * offset
        index, base_s, slope_s = self._verify_line(load)
        verify_ratio = self._verify[load.sampled].ratios()[index]
        times += verify_ratio * (base_s + slope_s * load.num_requests)
        times += verify_ratio * slope_s * offset
        return times

    def draft_s(self, load: RoundLoad, steps: int) -> float:
        """Seconds of drafting `steps` tokens for every request; 0 where the profile has no drafter."""
        if self.curve.draft is None:
            return 0.0
        ratio = self._draft[load.sampled].ratios()[self._draft_bucket(load.num_requests, steps)]
        return self._draft_curve_s(load, steps) * float(ratio)

    def parts(self, load: RoundLoad, *, num_tokens: int, steps: int) -> tuple[PartTimes, PartTimes]:
        """A round that ends with drafting `steps` tokens a request: what the curve says, and that corrected."""
        index, base_s, slope_s = self._verify_line(load)
        drafts = steps > 0 and self.curve.draft is not None
        curve_s = PartTimes(
            target_s=float(
                self.curve.step_time_s(
                    num_tokens,
                    load.context_tokens + num_tokens,
                    num_requests=load.num_requests,
                    longest_context=load.longest_context,
                )
            ),
            verify_s=base_s + slope_s * num_tokens,
            draft_s=self._draft_curve_s(load, steps) if drafts else 0.0,
        )
        target_ratio = self._target.ratios()[self.curve.target.index_of(num_tokens)]
        expected = PartTimes(
            target_s=curve_s.target_s * float(target_ratio),
            verify_s=curve_s.verify_s * float(self._verify[load.sampled].ratios()[index]),
            draft_s=self.draft_s(load, steps) if drafts else 0.0,
        )
        return curve_s, expected

    def observe_target(self, num_tokens: int, *, predicted_s: float, measured_s: float) -> None:
        """A target step over `num_tokens`; `predicted_s` is the curve's."""
        if self.adapt:
            index = int(self.curve.target.index_of(num_tokens))
            self._target.observe(index, predicted_s=predicted_s, measured_s=measured_s)

    def observe_verify(self, load: RoundLoad, *, predicted_s: float, measured_s: float) -> None:
        """Verification of a round's requests."""
        if self.adapt:
            index, _, _ = self._verify_line(load)
            self._verify[load.sampled].observe(index, predicted_s=predicted_s, measured_s=measured_s)

    def observe_draft(self, load: RoundLoad, *, steps: int, measured_s: float) -> None:
        """Drafting `steps` tokens for every request of `load`."""
        if self.adapt and self.curve.draft is not None:
            self._draft[load.sampled].observe(
                self._draft_bucket(load.num_requests, steps),
                predicted_s=self._draft_curve_s(load, steps),
                measured_s=measured_s,
            )

    def _ratios(self, curve_s: FloatArray, first: int) -> FloatArray:
        """curve_s [B] of the buckets from index `first` on, under one load -> what to multiply their times by."""
        if not self.adapt:
            return np.ones(len(curve_s))
        part = slice(first, first + len(curve_s))
        samples = self._target.samples()[part]
        doubt = 1 - _DOUBT * _DOUBTFUL_SAMPLES / (_DOUBTFUL_SAMPLES + samples)
        corrected = curve_s * self._target.ratios()[part] * doubt
        # Pair by pair: a larger bucket (column) may be faster than a smaller one (row) by what the curve says only.
        falls = np.minimum(curve_s[None, :] - curve_s[:, None], 0)
        least = np.where(np.tri(len(corrected), dtype=bool).T, corrected[:, None] + falls, 0)
        return least.max(axis=0) / curve_s

    def _verify_line(self, load: RoundLoad) -> tuple[int, float, float]:
        """Bucket index of the load's requests, and verification by the curve: seconds at 0 tokens and a token more."""
        key = (load.num_requests, load.sampled)
        if key not in self._verify_lines:
            stairs = self.curve.verify_sampled if load.sampled else self.curve.verify_greedy
            base_s, one_s = stairs.time_at([load.num_requests] * 2, [0, 1]).tolist()
            self._verify_lines[key] = (int(stairs.index_of(load.num_requests)), base_s, one_s - base_s)
        return self._verify_lines[key]

    def _draft_curve_s(self, load: RoundLoad, steps: int) -> float:
        if self._draft_curve[0] is not load:
            self._draft_curve = (load, {})
        times = self._draft_curve[1]
        if steps not in times:
            times[steps] = float(
                self.curve.draft_time_s(
                    load.num_requests,
                    load.context_tokens + load.num_requests * self.curve.block_width,
                    steps=steps,
                    sampled=load.sampled,
                    longest_context=load.longest_context,
                )
            )
        return times[steps]

    def _draft_bucket(self, num_requests: int, steps: int) -> int:
        """Place of such blocks in the estimators."""
        assert self.curve.draft is not None
        if num_requests not in self._draft_index:
            self._draft_index[num_requests] = int(self.curve.draft.index_of(num_requests))
        return (steps - 1) * len(self.curve.draft.buckets) + self._draft_index[num_requests]
