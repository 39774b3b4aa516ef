"""What a run did, counted as the README says."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from dspark.engine.requests import SpecCounts


@dataclass(slots=True)
class RunStats:
    """Totals over a run. `spec` adds up the completed requests; its rounds are theirs, so many for each request."""

    rounds: int = 0  # of the loop, each over all requests that run
    completed: int = 0  # requests
    prefill_tokens: int = 0  # of prompts, and of texts that were preempted
    preemptions: int = 0
    wasted_tokens: int = 0  # packed tokens that the target ran for requests which had ended
    emitted: int = 0  # tokens so far of all requests, unfinished ones included, less the one of each that prefill gives
    spec: SpecCounts = field(default_factory=SpecCounts)


class CountTable:
    """The counts of the requests in progress, in arrays over the slots."""

    def __init__(self, num_slots: int, *, gamma: int) -> None:
        self._rounds = np.zeros(num_slots, dtype=np.int64)  # [S]
        self._drafted = np.zeros(num_slots, dtype=np.int64)
        self._verified = np.zeros(num_slots, dtype=np.int64)
        self._observed = np.zeros(num_slots, dtype=np.int64)
        self._accepted = np.zeros(num_slots, dtype=np.int64)
        self._emitted = np.zeros(num_slots, dtype=np.int64)
        self._histogram = np.zeros((num_slots, gamma + 1), dtype=np.int64)  # rounds by accepted drafts

    def clear(self, slot: int) -> None:
        """A new request begins in `slot`."""
        for counter in (self._rounds, self._drafted, self._verified, self._observed, self._accepted, self._emitted):
            counter[slot] = 0
        self._histogram[slot] = 0

    def add_round(
        self,
        rows: np.ndarray,
        *,
        drafted: np.ndarray,
        verified: np.ndarray,
        observed: np.ndarray,
        accepted: np.ndarray,
        emitted: np.ndarray,
    ) -> None:
        """What a round gave slots `rows` [R]; the others [R] too."""
        self._rounds[rows] += 1
        self._drafted[rows] += drafted
        self._verified[rows] += verified
        self._observed[rows] += observed
        self._accepted[rows] += accepted
        self._emitted[rows] += emitted
        self._histogram[rows, accepted] += 1

    def of(self, slot: int) -> SpecCounts:
        """The counts of one request."""
        return SpecCounts(
            rounds=int(self._rounds[slot]),
            drafted=int(self._drafted[slot]),
            verified=int(self._verified[slot]),
            observed=int(self._observed[slot]),
            accepted=int(self._accepted[slot]),
            emitted=int(self._emitted[slot]),
            acceptance_histogram=tuple(self._histogram[slot].tolist()),
        )
