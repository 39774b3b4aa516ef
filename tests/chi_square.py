"""Do samples follow a known distribution: one test over many groups, each with a distribution of its own."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from scipy.stats import chi2

_SMALLEST_EXPECTED = 5.0


def fit_p_value(groups: Iterable[tuple[np.ndarray, np.ndarray]]) -> float:
    """groups of (counts [C], probabilities [C]) -> p of the hypothesis that every group follows its own.

    0 if something impossible was seen.
    """
    statistic, freedom = 0.0, 0
    for counts, probs in groups:
        if counts[probs == 0].any():
            return 0.0
        expected = probs * counts.sum()
        rare = expected < _SMALLEST_EXPECTED
        # Rare outcomes count as one, and that one is left out if it is still rare.
        observed = np.append(counts[~rare], counts[rare].sum())
        expected = np.append(expected[~rare], expected[rare].sum())
        enough = expected >= _SMALLEST_EXPECTED
        statistic += float((np.square(observed - expected)[enough] / expected[enough]).sum())
        freedom += max(int(enough.sum()) - 1, 0)
    return float(chi2.sf(statistic, freedom))
