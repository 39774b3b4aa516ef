"""What the rounds of a run come to: batches, their planned and real times, and the tokens they gave."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dspark.engine.round_meter import RoundMetrics


@dataclass(slots=True)
class BucketTotals:
    """The rounds that ran in one bucket; seconds are of the target's step."""

    rounds: int = 0
    batch_tokens: int = 0
    planned: int = 0
    predicted_step_s: float = 0.0
    measured: int = 0
    measured_step_s: float = 0.0

    def to_dict(self) -> dict[str, float | None]:
        """Counts and means, ready for strict JSON."""
        return {
            "rounds": self.rounds,
            "batch_tokens": self.batch_tokens,
            "predicted_step_s": self.predicted_step_s / self.planned if self.planned else None,
            "measured_step_s": self.measured_step_s / self.measured if self.measured else None,
        }


@dataclass(slots=True)
class RoundTotals:
    """Adds up the rounds that it is told of; as many numbers as there are buckets, however many rounds.

    A round of the engine is over all requests that run; `SpecCounts.rounds` counts it once for each of them.
    """

    rounds: int = 0
    batch_tokens: int = 0
    wasted_tokens: int = 0
    emitted: int = 0
    # Of the rounds that were both planned and measured.
    compared: int = 0
    expected_tokens: float = 0.0
    compared_emitted: int = 0
    predicted_s: float = 0.0
    measured_s: float = 0.0
    by_bucket: dict[int, BucketTotals] = field(default_factory=dict)

    def add(self, round: RoundMetrics) -> None:
        """Count one round in."""
        self.rounds += 1
        self.batch_tokens += round.batch_tokens
        self.wasted_tokens += round.wasted_tokens
        self.emitted += round.emitted
        bucket = self.by_bucket.get(round.bucket)
        if bucket is None:
            bucket = self.by_bucket[round.bucket] = BucketTotals()
        bucket.rounds += 1
        bucket.batch_tokens += round.batch_tokens
        if round.predicted_step_s is not None:
            bucket.planned += 1
            bucket.predicted_step_s += round.predicted_step_s
        if round.measured_step_s is not None:
            bucket.measured += 1
            bucket.measured_step_s += round.measured_step_s
        if round.expected_tokens is not None and round.predicted_s is not None and round.measured_s is not None:
            self.compared += 1
            self.expected_tokens += round.expected_tokens
            self.compared_emitted += round.emitted
            self.predicted_s += round.predicted_s
            self.measured_s += round.measured_s

    def to_dict(self) -> dict[str, Any]:
        """Everything, ready for strict JSON. `plan` is null where no round was planned, as by `none` and `fixed:K`."""
        plan = None
        if self.compared and self.predicted_s > 0 and self.measured_s > 0:
            plan = {
                "rounds": self.compared,
                "expected_tokens": self.expected_tokens,
                "emitted": self.compared_emitted,
                "predicted_s": self.predicted_s,
                "measured_s": self.measured_s,
                "predicted_tokens_per_s": self.expected_tokens / self.predicted_s,
                "measured_tokens_per_s": self.compared_emitted / self.measured_s,
            }
        return {
            "rounds": self.rounds,
            "batch_tokens": self.batch_tokens,
            "wasted_tokens": self.wasted_tokens,
            "emitted": self.emitted,
            "plan": plan,
            "by_bucket": [{"bucket": size, **self.by_bucket[size].to_dict()} for size in sorted(self.by_bucket)],
        }
