"""How the rows of a round are sampled, as far as the host tells."""

from __future__ import annotations

from enum import Enum

import numpy as np

from dspark.engine.slots import SlotTable


class Sampling(Enum):
    """Of all rows of a batch, from the cheapest verification to the dearest."""

    GREEDY = "greedy"  # all rows
    SAMPLED = "sampled"  # some row
    TRUNCATED = "truncated"  # some row has top-k or top-p

    @classmethod
    def of(cls, slots: SlotTable, rows: np.ndarray) -> Sampling:
        """The one of slots `rows` [R]; truncation of a greedy row changes nothing."""
        if slots.sampling is None or slots.sampling[0] is not rows:
            slots.sampling = rows, cls._of(slots, rows)
        return slots.sampling[1]

    @classmethod
    def _of(cls, slots: SlotTable, rows: np.ndarray) -> Sampling:
        warm = slots.temperature[rows] > 0
        if not warm.any():
            return cls.GREEDY
        truncated = (slots.top_k[rows] > 0) | (slots.top_p[rows] < 1)
        return cls.TRUNCATED if (warm & truncated).any() else cls.SAMPLED
