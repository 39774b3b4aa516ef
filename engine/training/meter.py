"""What the steps of a run give, gathered without waiting for the device."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from dspark.engine.training.batches import HostBatch
from dspark.engine.training.step import StepLoss


@dataclass(frozen=True, slots=True)
class Gathered:
    """Means over the steps since the last look."""

    loss: float
    gradient_norm: float
    acceptance: tuple[float, ...]  # mean 1 - TV of each slot
    positions_per_s: float
    step_time_s: float


class StepMeter:
    """Sums over steps, kept on the device until somebody looks."""

    def __init__(self, block_size: int, device: torch.device) -> None:
        # Loss and gradient norm; then rates and counts of each slot.
        self._sums = torch.zeros(2 + 2 * block_size, device=device)
        self._block_size = block_size
        self._started_s = 0.0
        self._positions = 0
        self.steps = 0

    def begin(self, now_s: float) -> None:
        """The next step begins now, by the clock of `take`."""
        self._started_s = now_s

    def add(self, host: HostBatch, result: StepLoss, norm: Tensor) -> None:
        """Take in a step: its batch, its loss, and the norm of its gradient."""
        size = self._block_size
        place = result.slots % size
        rates = 1 - result.rows.distance / 2
        self._sums[0] += result.loss.detach()
        self._sums[1] += norm
        self._sums[2 : 2 + size].index_add_(0, place, rates)
        self._sums[2 + size :].index_add_(0, place, torch.ones_like(rates))
        self.steps += 1
        self._positions += len(host.slots)

    def take(self, now_s: float) -> Gathered:
        """Wait for the device, and begin anew."""
        loss, norm, *sums = self._sums.tolist()
        rates, counts = sums[: self._block_size], sums[self._block_size :]
        acceptance = tuple(rate / max(count, 1) for rate, count in zip(rates, counts, strict=True))
        taken_s = max(now_s - self._started_s, 1e-9)
        speed = self._positions / taken_s
        gathered = Gathered(loss / self.steps, norm / self.steps, acceptance, speed, taken_s / self.steps)
        self._sums.zero_()
        self._started_s, self._positions, self.steps = now_s, 0, 0
        return gathered
