"""Policies that look at each request's block before the one at hand, which an engine forgets."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest

from dspark.engine import scheduling
from dspark.engine.orders import RoundOrder
from dspark.engine.proposals import DraftOutput
from dspark.engine.scheduling import PolicyScheduler
from dspark.engine.slots import SlotTable


@dataclass(frozen=True, slots=True)
class BlockBefore:
    """Of R requests."""

    confidence_logits: np.ndarray  # [R, G] fp32
    known: np.ndarray  # [R] bool, was there one


class ReadsBlockBefore:
    """A policy that is shown it."""

    drafts = True
    reads_confidence = True
    before: BlockBefore

    def steps(self, gamma: int) -> int:
        return gamma


class RememberingScheduler(PolicyScheduler):
    """Shows its policy the block before."""

    def __init__(self, slots: SlotTable, policy: ReadsBlockBefore, *, gamma: int, temperatures: np.ndarray) -> None:
        super().__init__(slots, policy, gamma=gamma, temperatures=temperatures)
        self._logits = np.zeros((len(slots.serial), gamma), dtype=np.float32)  # [S, G]
        self._of = np.full(len(slots.serial), -1)  # [S], whose they are

    def revise(self, rows: np.ndarray, order: RoundOrder, draft: DraftOutput) -> RoundOrder:
        who = self._slots.serial[rows]
        self._policy.before = BlockBefore(self._logits[rows, : order.steps], self._of[rows] == who)
        revised = super().revise(rows, order, draft)
        self._logits[rows, : order.steps] = draft.confidence_logits.numpy()
        self._of[rows] = who
        return revised


@pytest.fixture(autouse=True)
def remembering(monkeypatch: pytest.MonkeyPatch) -> None:
    """Engines remember for the policies that ask."""
    own = scheduling.PolicyScheduler

    def scheduler(slots: SlotTable, policy: object, **options: object) -> PolicyScheduler:
        return (RememberingScheduler if isinstance(policy, ReadsBlockBefore) else own)(slots, policy, **options)

    monkeypatch.setattr(scheduling, "PolicyScheduler", scheduler)
