"""How many tokens to verify in a round.

Source: arXiv 2607.05147, section 5.1, Algorithm 1, and its asynchronous form, section 5.2.

Of R requests, a budget of m drafted tokens makes a batch of K = R + m packed tokens. It is worth
Theta(m) = (R + gain[m]) / round_time_s[m]: every request yields one token whatever was drafted, and gain[m] is what
the m likeliest drafted tokens add on average.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from dspark.engine.scheduler.arrays import FloatArray, HazardArray
from dspark.engine.scheduler.survival import HAZARD_LIMIT, survival


def is_candidate(hazards: HazardArray, caps: NDArray[np.integer]) -> NDArray[np.bool_]:
    """hazards [R, G], caps [R] -> which draft positions may be verified [R, G]: within the cap, survival above 0."""
    return (np.arange(hazards.shape[1]) < caps[:, None]) & (hazards < HAZARD_LIMIT)


def gain_curve(hazards: HazardArray, caps: NDArray[np.integer]) -> FloatArray:
    """hazards [R, G], caps [R] -> [n + 1]: expected accepted tokens of the best 0, 1 ... n candidates.

    Survival never rises along a block, so the best m candidates are prefixes of the blocks.
    """
    ordered = np.sort(hazards[is_candidate(hazards, caps)])
    gain = np.zeros(len(ordered) + 1)
    np.cumsum(survival(ordered), out=gain[1:])
    return gain


def throughput(gain: FloatArray, round_time_s: FloatArray, *, num_requests: int) -> FloatArray:
    """gain [n + 1], round_time_s [> n] of batches of R, R + 1 ... tokens -> Theta [n + 1], tokens a second."""
    return (num_requests + gain) / round_time_s[: len(gain)]


def best_budget(gain: FloatArray, round_time_s: FloatArray, *, num_requests: int) -> int:
    """`async`: the budget of the largest Theta anywhere, so that a costly step may be crossed to reach a shelf behind.

    A larger batch has to be strictly better: of equals the smallest is taken.
    """
    return int(np.argmax(throughput(gain, round_time_s, num_requests=num_requests)))


def first_drop_budget(gain: FloatArray, round_time_s: FloatArray, *, num_requests: int) -> int:
    """`causal`: walk the candidates, likeliest first, and stop at the first that does not improve Theta.

    Whether a token is admitted then depends on nothing that is ranked after it, so the walk may read the very block
    that it schedules.
    """
    theta = throughput(gain, round_time_s, num_requests=num_requests)
    stays = theta[1:] <= theta[:-1]
    return int(np.argmax(stays)) if stays.any() else len(stays)
