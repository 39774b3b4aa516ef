"""The seam between measuring and running: whoever can run a round's parts at a wanted size can be profiled."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Sample:
    """One timed run."""

    bucket: int  # that really ran: packed tokens for the target, else requests
    wall_s: float  # until the result was there
    device_s: float | None  # between events on the device; None where it has none


class StepTimer(Protocol):
    """Runs one part of a round with real metadata and times it. Nothing it does may change what a decoder reads."""

    @property
    def runner(self) -> str:
        """What runs: "eager" or "graphs"."""

    @property
    def token_buckets(self) -> tuple[int, ...]:
        """Packed-token counts that a target step is padded to, increasing."""

    @property
    def request_buckets(self) -> tuple[int, ...]:
        """Request counts that drafting and verification are padded to, increasing."""

    @property
    def short_context(self) -> int | None:
        """Visible tokens of a batch's longest request past which other attention kernels run; None: one kind runs."""

    def longest_context(self, num_requests: int) -> int:
        """Context tokens that each of `num_requests` can have, as models and memory allow; under 1: none."""

    def measure_target(self, num_tokens: int, *, num_requests: int, context_tokens: int) -> Sample:
        """A target step, main-cache write included, over tokens spread evenly over the requests."""

    def measure_draft(self, num_requests: int, *, context_tokens: int, steps: int, sampled: bool) -> Sample:
        """A draft block with Markov steps and confidence of its first `steps` tokens; `sampled`: at temperature 1."""

    def measure_verification(self, num_tokens: int, *, num_requests: int, context_tokens: int, sampled: bool) -> Sample:
        """Everything that verification costs beside the target's forward; `sampled`: at temperature 1."""
