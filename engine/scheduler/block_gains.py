"""What verifying blocks of each length is worth on average, as far as the blocks that were drafted tell."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby, pairwise

import numpy as np

from dspark.engine.scheduler.arrays import FloatArray, HazardArray
from dspark.engine.scheduler.capacity import gain_curve
from dspark.engine.scheduler.gain_average import GainAverage
from dspark.engine.scheduler.survival import survival

# Blocks that are averaged: for a capacity few, since requests differ and change; for how much to draft, which is to be
# decided seldom, many.
RECENT_BLOCKS, LASTING_BLOCKS = 16, 512
_MOST_CHANGE = 2.0  # of a longer block's gain, by what shorter ones' tells


class BlockGains:
    """Gain averages of blocks of some lengths; a block tells what itself and shorter ones would be worth.

    The lasting averages take in what came since in one go (`digest`), since they are looked at in few rounds.

    Args:
        lengths: drafted tokens of a block, rising.
    """

    def __init__(self, lengths: Sequence[int]) -> None:
        self._lasting = {length: GainAverage(length, window=LASTING_BLOCKS) for length in lengths}
        self._idle_rounds = dict.fromkeys(lengths, 0)  # that told nothing of such blocks since the last that did
        self._undigested: list[HazardArray] = []
        self._recent: tuple[int, GainAverage] | None = None  # of the length that was asked for last

    @property
    def blocks(self) -> float:
        """Blocks of any length that the lasting averages stand for."""
        return max(average.blocks for average in self._lasting.values())

    def take_in(self, seen: HazardArray) -> None:
        """Blocks [R, k] of one round, R and k at least 1, as if each could be verified in full."""
        self._undigested.append(seen)
        num_requests, steps = seen.shape
        for length in self._idle_rounds:
            if length > steps:
                self._idle_rounds[length] += 1
        if num_requests >= RECENT_BLOCKS:
            self._recent = None
        elif self._recent is not None and self._recent[0] <= steps:
            length, average = self._recent
            gain = gain_curve(seen[:, :length], np.full(num_requests, length))
            average.update(gain, num_requests=num_requests, idle_rounds=0)

    def miss(self) -> None:
        """A round in which no block was seen."""
        for length in self._idle_rounds:
            self._idle_rounds[length] += 1

    def digest(self) -> None:
        """Take what was seen since the last time into the lasting averages."""
        start, rows = len(self._undigested), 0
        while start and rows < LASTING_BLOCKS:
            start -= 1
            rows += len(self._undigested[start])
        for (num_requests, steps), alike in groupby(self._undigested[start:], key=np.shape):
            blocks = np.stack(list(alike))  # [rounds, R, k]
            of_shorter = 0.0
            for length, average in self._lasting.items():
                if length > steps:
                    break
                ordered = np.sort(blocks[:, :, :length].reshape(len(blocks), -1), axis=1)
                gain = np.zeros(num_requests * length + 1)
                np.cumsum(survival(ordered).mean(axis=0), out=gain[1:])
                average.update(
                    gain,
                    num_requests=num_requests,
                    idle_rounds=self._idle_rounds[length],
                    rounds=len(blocks),
                    of_shorter=of_shorter,
                )
                self._idle_rounds[length] = 0
                of_shorter = float(gain[-1]) / num_requests
        self._undigested.clear()

    def lasting(self, length: int, num_requests: int) -> FloatArray:
        """Gain curve [R * length + 1] over many blocks.

        Where longer blocks are seldom seen, text may have become harder or easier since: their gain is taken to have
        changed as that of shorter ones has, which are seen all the time.
        """
        change = 1.0
        for shorter, longer in pairwise(self._lasting[some] for some in self._lasting if some <= length):
            if longer.of_shorter > 0:
                change *= shorter.of_all / longer.of_shorter
        return min(max(change, 1 / _MOST_CHANGE), _MOST_CHANGE) * self._lasting[length].at(num_requests)

    def recent(self, most_tokens: int, num_requests: int) -> FloatArray:
        """Gain curve [n + 1] over the last few blocks, of the shortest length that has `most_tokens` tokens.

        Where the last few were shorter, or of more requests than one average is needed for, the lasting one's.
        """
        length = next(length for length in self._lasting if length >= most_tokens)
        if self._recent is None or self._recent[0] != length:
            self._recent = length, self._lasting[length].shortened(RECENT_BLOCKS)
        return self._recent[1].at(num_requests)
