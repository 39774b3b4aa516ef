"""What is known of a round before it is ordered."""

from __future__ import annotations

import numpy as np

from dspark.engine.sampling import Sampling
from dspark.engine.scheduler.round_time import RoundLoad
from dspark.engine.slots import SlotTable

_ABOUT_AS_MANY = 1 / 16  # share by which the number of requests may have changed


def useful_steps(slots: SlotTable, rows: np.ndarray, steps: int) -> tuple[int, np.ndarray]:
    """Tokens to draft, 0 where nobody in slots `rows` [R] could use any, and how many each may verify, [R]."""
    most_left = slots.most_left(rows)
    if int(most_left.max()) <= 1:
        steps = 0
    return steps, np.minimum(steps, most_left - 1)


def round_load(slots: SlotTable, rows: np.ndarray) -> RoundLoad:
    """What slots `rows` [R] make of a round's time, whatever is verified."""
    contexts = slots.most_start(rows)
    return RoundLoad(
        num_requests=len(rows),
        context_tokens=int(contexts.sum()),
        sampled=bool(slots.temperature[rows].any()),
        longest_context=int(contexts.max()),
    )


def is_alike(slots: SlotTable, rows: np.ndarray, load: RoundLoad, *, share: float = _ABOUT_AS_MANY) -> bool:
    """Does a plan for `load`, made a few rounds ago, go for slots `rows` [R] too, up to `share` more or fewer?"""
    if abs(len(rows) - load.num_requests) > share * load.num_requests:
        return False
    return (Sampling.of(slots, rows) is not Sampling.GREEDY) == load.sampled
