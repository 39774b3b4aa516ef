"""What is known of each request's survival, block by block: two generations, and two counters that tell them apart.

Which drafted tokens are verified must not depend on what they turned out to be. So the capacity of a round is computed
from the survival of an older block than the one it verifies, however early the newer one's may be at hand.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dspark.engine.scheduler.arrays import HazardArray, IntArray
from dspark.engine.scheduler.survival import HAZARD_LIMIT


@dataclass(frozen=True, slots=True)
class HistoryView:
    """Survival of R requests, as far as it may be known where they are scheduled."""

    # [R, k], k tokens of the longest of their blocks; 0, certain acceptance, where nothing is known; at the limit, no
    # candidates, behind a shorter block.
    hazards: HazardArray
    known: NDArray[np.bool_]  # [R], was there a block at all


class SurvivalHistory:
    """Two generations of hazards a request slot, and how many generations were scheduled and processed.

    A generation is one round's block of a request, or an empty one in a round that has none; blocks that nobody will
    look at, since the plan behind them was made already, are none. `schedule` opens it when its verification is
    planned, `process` closes it when its confidence has arrived, before or after that plan is made from `before`.
    """

    def __init__(self, num_slots: int, gamma: int) -> None:
        self._newest = np.zeros((num_slots, gamma), dtype=np.int32)  # hazards of the newest block processed
        self._previous = np.zeros((num_slots, gamma), dtype=np.int32)  # of the one before it
        self._newest_steps = np.zeros(num_slots, dtype=np.int64)  # tokens of that block
        self._previous_steps = np.zeros(num_slots, dtype=np.int64)
        self._blocks = np.zeros(num_slots, dtype=np.int64)  # processed, empty generations apart
        self._open_has_block = np.zeros(num_slots, dtype=bool)  # of the newest generation scheduled
        self.scheduled = np.zeros(num_slots, dtype=np.int64)  # [S]
        self.processed = np.zeros(num_slots, dtype=np.int64)  # [S]

    def reset(self, slots: IntArray) -> None:
        """Forget slots whose request arrives, leaves, or loses its cache."""
        self._newest[slots] = self._previous[slots] = 0
        self._newest_steps[slots] = self._previous_steps[slots] = 0
        self._blocks[slots] = self.scheduled[slots] = self.processed[slots] = 0
        self._open_has_block[slots] = False

    def schedule(self, slots: IntArray, *, drafted: bool) -> None:
        """The next generation of `slots` is about to be verified; if not `drafted` it is an empty one.

        Raises:
            RuntimeError: the generation before it was not processed yet.
        """
        self._require(slots, open_generations=0, action="schedule")
        self.scheduled[slots] += 1
        self._open_has_block[slots] = drafted

    def process(self, slots: IntArray, hazards: HazardArray | None) -> None:
        """The confidence of the scheduled generation has arrived: hazards [R, k] of k drafted tokens, None for none.

        Raises:
            RuntimeError: no generation is open, or what arrived is not of its kind.
        """
        self._require(slots, open_generations=1, action="process")
        if (self._open_has_block[slots] != (hazards is not None)).any():
            raise RuntimeError("an empty generation was processed as a block, or a block as an empty generation")
        self.processed[slots] += 1
        if hazards is None:
            return
        self._previous[slots] = self._newest[slots]
        self._previous_steps[slots] = self._newest_steps[slots]
        steps = hazards.shape[1]
        self._newest[slots, :steps] = hazards
        self._newest[slots, steps:] = HAZARD_LIMIT
        self._newest_steps[slots] = steps
        self._blocks[slots] += 1

    def before(self, slots: IntArray) -> HistoryView:
        """The last survival known that is older than the newest generation scheduled, for `slots` [R]."""
        # If that generation's own confidence is here already, the newest hazards are its, and must not be read.
        return self._view(slots, self._open_has_block[slots] & (self.processed[slots] == self.scheduled[slots]))

    def latest(self, slots: IntArray) -> HistoryView:
        """The last survival known of `slots` [R]: for rounds whose blocks are yet to be drafted."""
        return self._view(slots, np.zeros(len(slots), dtype=bool))

    def _view(self, slots: IntArray, passes_newest: NDArray[np.bool_]) -> HistoryView:
        hazards = np.where(passes_newest[:, None], self._previous[slots], self._newest[slots])
        steps = int(np.where(passes_newest, self._previous_steps[slots], self._newest_steps[slots]).max(initial=0))
        return HistoryView(hazards[:, :steps] if steps else hazards, self._blocks[slots] - passes_newest > 0)

    def _require(self, slots: IntArray, *, open_generations: int, action: str) -> None:
        wrong = self.scheduled[slots] - self.processed[slots] != open_generations
        if wrong.any():
            slot = int(np.asarray(slots)[wrong][0])
            raise RuntimeError(
                f"cannot {action} slot {slot}: {self.scheduled[slot]} generations were scheduled and "
                f"{self.processed[slot]} processed"
            )
