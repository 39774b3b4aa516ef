"""What verifying the best m drafted tokens is worth on average, where one round says too little."""

from __future__ import annotations

import numpy as np

from dspark.engine.scheduler.arrays import FloatArray

_HALF_LIFE_ROUNDS = 512.0


class GainAverage:
    """A running mean of gain curves over about `window` blocks, for batches of any number of requests.

    The blocks of many requests together are much like those before them, and with as many as the window the newest
    curve is taken as it is. One request's last block says little of its next: with its survival alone the budget would
    follow noise, and a batch whose size varies without cause is slower than the best constant one.

    Args:
        steps: drafted tokens of a block.
    """

    def __init__(self, steps: int, *, window: int) -> None:
        self._steps = steps
        self._window = window
        self._gain = np.zeros(1)  # [R * steps + 1], of `_requests` requests
        self._requests = 0
        self._blocks = 0.0
        # What shorter blocks would have given a request on the same occasions, as `update` is told.
        self.of_shorter = 0.0

    def update(
        self, gain: FloatArray, *, num_requests: int, idle_rounds: int, rounds: int = 1, of_shorter: float = 0.0
    ) -> None:
        """Take in the gain curve [n + 1] of blocks of R requests, `idle_rounds` rounds after the last one.

        rounds: of which it is the mean. of_shorter: what to expect of one request, had its block been shorter.
        """
        padded = np.full(num_requests * self._steps + 1, gain[-1])
        padded[: len(gain)] = gain
        blocks = num_requests * rounds
        kept = min(self._blocks * 0.5 ** (idle_rounds / _HALF_LIFE_ROUNDS), max(self._window - blocks, 0.0))
        share = blocks / (kept + blocks)
        if kept > 0:
            old = self.at(num_requests)
            padded = old + (padded - old) * share
        self.of_shorter += (of_shorter - self.of_shorter) * share
        self._gain, self._requests, self._blocks = padded, num_requests, kept + blocks

    @property
    def of_all(self) -> float:
        """Expected accepted tokens of one request whose block is verified in full."""
        return float(self.at(1)[-1])

    @property
    def blocks(self) -> float:
        """That the mean stands for."""
        return self._blocks

    def at(self, num_requests: int) -> FloatArray:
        """Expected accepted tokens of the best 0, 1 ... R * steps candidates of R requests; all, if none was seen."""
        if self._requests == 0:
            return np.arange(num_requests * self._steps + 1, dtype=np.float64)
        return rescaled(self._gain, num_requests / self._requests)

    def shortened(self, window: int) -> GainAverage:
        """The same mean, that remembers fewer blocks from here on."""
        other = GainAverage(self._steps, window=window)
        other._gain, other._requests, other._blocks = self._gain, self._requests, min(self._blocks, window)
        return other


def rescaled(gain: FloatArray, share: float) -> FloatArray:
    """The gain curve of so many requests -> that of `share` times as many of their kind."""
    if share == 1:
        return gain
    size = round((len(gain) - 1) * share) + 1
    return share * np.interp(np.arange(size) / share, np.arange(len(gain)), gain)
