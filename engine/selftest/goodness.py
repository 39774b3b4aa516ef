"""Pearson's test of counts against probabilities."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

# Rarer outcomes count as one.
_SMALLEST_EXPECTED = 5.0


@dataclass(frozen=True, slots=True)
class Fit:
    """A chi-square statistic and its degrees of freedom; those of independent counts add up."""

    statistic: float = 0.0
    freedom: int = 0

    def __add__(self, other: Fit) -> Fit:
        return Fit(self.statistic + other.statistic, self.freedom + other.freedom)

    @property
    def p_value(self) -> float:
        """Chance of a statistic as large as this, if the probabilities are the true ones."""
        from scipy.stats import chi2

        if self.freedom == 0:
            return 0.0 if self.statistic > 0 else 1.0
        return float(chi2.sf(self.statistic, self.freedom))


def pearson(counts: NDArray[np.int64], probs: NDArray[np.float64]) -> Fit:
    """counts [V] of independent draws, their probabilities [V] -> how well they agree.

    The statistic is infinite if something impossible was drawn.
    """
    total = int(counts.sum())
    if counts[probs == 0].any():
        return Fit(statistic=np.inf)
    order = np.argsort(-probs, kind="stable")
    expected = probs[order] * total
    common = int((expected >= _SMALLEST_EXPECTED).sum())
    cells, drawn = expected[:common], counts[order][:common].astype(np.float64)
    rest, rest_drawn = expected[common:].sum(), float(counts[order][common:].sum())
    if rest >= _SMALLEST_EXPECTED or not common:
        cells, drawn = np.append(cells, rest), np.append(drawn, rest_drawn)
    else:
        cells[-1] += rest
        drawn[-1] += rest_drawn
    if len(cells) < 2:
        return Fit()
    return Fit(float((np.square(drawn - cells) / cells).sum()), len(cells) - 1)
