"""Looks into the caches while requests decode: below its visible length a request has what a fresh prefill writes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from dspark.engine.slots import RUNNING
from dspark.engine.transfer import upload

if TYPE_CHECKING:
    from dspark.engine.engine import Engine
    from dspark.engine.loop import DecodeLoop
    from dspark.engine.observation import ObservedRound
    from dspark.engine.selftest.plain import PlainForward

# Distance of a row from that of a fresh prefill, over the mean length of its layer's rows. Another token's row, or one
# at another position, is of the order of 1 away; the rest is rounding, which the depth of a model adds up.
TOLERANCES = {"float32": 1e-3, "float16": 0.03, "bfloat16": 0.2, "int8": 0.3}


@dataclass(frozen=True, slots=True)
class RowError:
    """The row of a request that is furthest from a fresh prefill's."""

    model: str  # "target" or "drafter"
    request: int
    position: int
    error: float


class CacheWatch:
    """An observer of rounds: compares a request's caches after its first rollback, and when it ends.

    Args:
        loop: that decodes one round at a time, so that the caches hold what the slots say.
    """

    def __init__(self, engine: Engine, loop: DecodeLoop, plain: PlainForward) -> None:
        self.rollbacks = 0
        self.compared = 0
        self.worst: RowError | None = None
        self._engine = engine
        self._loop = loop
        self._plain = plain
        self._rolled_back: set[int] = set()

    def __call__(self, observed: ObservedRound) -> None:
        """A round has been booked, and whoever ends with it has not left yet."""
        slots = self._loop.slots
        rejected = set(observed.request[observed.verified > observed.accepted].tolist())
        self.rollbacks += len(rejected)
        first = rejected - self._rolled_back
        self._rolled_back |= first
        taking_part = set(observed.request.tolist())
        for slot in slots.of_status(RUNNING).tolist():
            request = int(slots.request_index[slot])
            if request in taking_part and (request in first or self._ends(slot)):
                self._compare(slot)

    def _ends(self, slot: int) -> bool:
        slots = self._loop.slots
        stopped = not slots.ignore_eos[slot] and int(slots.completion(slot)[-1]) in self._engine.stop_ids
        return bool(stopped or slots.emitted[slot] >= slots.limit[slot])

    def _compare(self, slot: int) -> None:
        slots, engine = self._loop.slots, self._engine
        length = int(slots.context_len[slot])
        positions = np.arange(length)
        rows = upload(self._loop.pool.cache_rows(np.full(length, slot), positions), engine.device)
        fresh = self._plain.caches(slots.tokens[slot, :length].tolist())
        self.compared += 1
        for model, cache in (("target", engine.target_cache), ("drafter", engine.draft_cache)):
            if cache is None:
                continue
            k, v = fresh[model]
            errors = torch.maximum(_distance(cache.k[:, rows], k), _distance(cache.v[:, rows], v))  # [n]
            position = int(errors.argmax())
            error = float(errors[position])
            if self.worst is None or not error <= self.worst.error:
                self.worst = RowError(model, int(slots.request_index[slot]), position, error)


def _distance(found: Tensor, expected: Tensor) -> Tensor:
    """K or V [L, n, Hkv, D] twice -> [n], of each position in the layer where it is largest."""
    found, expected = found.flatten(2).float(), expected.flatten(2).float()
    # Some rows are tiny (those that attention rests on when it has nothing to look at), so no row is its own measure.
    scale = expected.norm(dim=2).mean(dim=1, keepdim=True)  # [L, 1]
    return ((found - expected).norm(dim=2) / scale).amax(dim=0)
