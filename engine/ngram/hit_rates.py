"""How often a draft of a given match length was right."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

# Of the built-in target's greedy answers to the prompts that `calibrate` brings along, by match length.
_PRIOR = (0.23, 0.48, 0.57, 0.72, 0.77, 0.77, 0.78, 0.94)
# Drafts that the prior counts for: a run's own rates take over within its first rounds.
_PRIOR_DRAFTS = 20.0


class HitRates:
    """The mean of a Beta posterior for every match length 1 … `longest`.

    Match lengths beyond the prior's start from its last rate.
    """

    def __init__(self, longest: int) -> None:
        prior = np.array([_PRIOR[min(length, len(_PRIOR)) - 1] for length in range(1, longest + 1)])
        self._hits = np.concatenate([[0.0], _PRIOR_DRAFTS * prior])  # [1 + longest]; nothing has match length 0
        self._misses = np.concatenate([[0.0], _PRIOR_DRAFTS * (1 - prior)])

    def add(self, match_lengths: NDArray[np.int64], hits: NDArray[np.bool_]) -> None:
        """Drafts of `match_lengths` [n], each right or wrong."""
        self._hits += np.bincount(match_lengths[hits], minlength=len(self._hits))
        self._misses += np.bincount(match_lengths[~hits], minlength=len(self._misses))

    def logits(self, match_lengths: NDArray[np.int64]) -> NDArray[np.float32]:
        """Log odds of a hit for `match_lengths` of any shape, each from 1 to `longest`."""
        return np.log(self._hits[match_lengths] / self._misses[match_lengths]).astype(np.float32)
