"""Which drafted tokens fill a budget (arXiv 2607.05147, section 5.2); device twin: `dspark.kernels.allocation`."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from dspark.engine.scheduler.arrays import HazardArray, IntArray
from dspark.engine.scheduler.capacity import is_candidate


def allocate(hazards: HazardArray, caps: NDArray[np.integer], *, budget: int) -> IntArray:
    """hazards [R, G] of the block to be verified, caps [R] -> drafted tokens of each request to verify, [R].

    The `budget` likeliest candidates; of equals the one of the lower request index, then the lower position. Whether
    position j is verified depends on how many candidates rank before it, so on nothing at or behind j in its block.
    """
    candidates = is_candidate(hazards, caps)
    available = candidates.sum(axis=1)
    if budget >= int(available.sum()):
        return available
    if budget <= 0:
        return np.zeros(len(hazards), dtype=np.int64)
    # Distinct keys: hazard first, then request, then position.
    keys = hazards.astype(np.int64) * hazards.size + np.arange(hazards.size).reshape(hazards.shape)
    last = np.partition(keys[candidates], budget - 1)[budget - 1]
    return np.count_nonzero(candidates & (keys <= last), axis=1)
