"""What verifying the best m drafted tokens is worth on average, where one round says too little (DESIGN 4)."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]

# Blocks whose average is a good guess of the next one. A batch of as many requests speaks for itself.
_WINDOW = 64.0
_HALF_LIFE_ROUNDS = 64.0


class GainAverage:
    """A running mean of gain curves over about 64 blocks, for batches of any number of requests.

    The blocks of 64 or more requests are hardly likelier or less likely together than those before them, so their curve
    is taken as it is. One request's last block says little of its next: with its survival alone the budget would
    follow noise, and a batch whose size varies without cause is slower than the best constant one.
    """

    def __init__(self, steps: int) -> None:
        self.steps = steps  # drafted tokens a request, at most
        self._gain = np.zeros(1)  # [R * steps + 1], of `_requests` requests
        self._requests = 0
        self._blocks = 0.0  # that the mean stands for

    def update(self, gain: FloatArray, *, num_requests: int, num_known: int, idle_rounds: int) -> None:
        """Take in the gain curve [n + 1] of R requests, of which `num_known` have blocks that were seen.

        idle_rounds: how many rounds passed without a curve; what was known before them counts less.
        """
        padded = np.full(num_requests * self.steps + 1, gain[-1])
        padded[: len(gain)] = gain[: len(padded)]
        self._blocks = min(self._blocks * 0.5 ** (idle_rounds / _HALF_LIFE_ROUNDS), max(_WINDOW - num_known, 0.0))
        if self._blocks > 0:
            old = self.at(num_requests)
            padded = old + (padded - old) * (num_known / (self._blocks + num_known))
        self._gain, self._requests = padded, num_requests
        self._blocks += num_known

    def at(self, num_requests: int) -> FloatArray:
        """Expected accepted tokens of the best 0, 1 ... R * steps candidates of R requests."""
        if self._requests == 0:
            return np.arange(num_requests * self.steps + 1, dtype=np.float64)
        if self._requests == num_requests:
            return self._gain
        share = num_requests / self._requests
        known = np.arange(len(self._gain))
        return share * np.interp(np.arange(num_requests * self.steps + 1) / share, known, self._gain)
