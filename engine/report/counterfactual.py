"""Confidences that the drafter could have given: freely recalibrated ones, and the true chance of acceptance."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from dspark.calibration import Traces, survival
from dspark.engine.report.audit import ORACLE

# Keeps logits finite.
_MARGIN = 1e-6


def recalibrated_logits(full: Traces, temperatures: NDArray[np.float64]) -> NDArray[np.float64]:
    """Logits [N, G], to be used at temperature 1, of a free monotone recalibration of each position's survival.

    Each half of the requests is recalibrated by what is fitted on the other half: what a calibration with as many
    parameters as it likes, but no better order, would give on new requests.
    """
    from sklearn.isotonic import IsotonicRegression

    # What was not drafted has no chance.
    given = np.nan_to_num(survival(full.confidence_logits, temperatures), nan=0.0)
    requests, half = np.unique(full.request, return_inverse=True)
    # One request: every second of its blocks.
    half = (half if requests.size > 1 else np.arange(len(full))) % 2
    fitted = given.copy()
    for k in range(full.gamma):
        for part in (half == 0, half == 1):
            if part.any() and not part.all():
                isotonic = IsotonicRegression(out_of_bounds="clip").fit(given[~part, k], full.accepted[~part] > k)
                fitted[part, k] = isotonic.predict(given[part, k])
    fitted = np.minimum.accumulate(np.clip(fitted, _MARGIN, 1.0), axis=1)
    return _logits(fitted / np.column_stack([np.ones(len(full)), fitted[:, :-1]]))


def true_logits(full: Traces) -> NDArray[np.float64] | None:
    """Logits [N, G] of the recorded chance of acceptance 1 - TV(p, q), where all of it is recorded."""
    chance = full.signals.get(ORACLE)
    if chance is None:
        return None
    drafted = ~np.isnan(full.confidence_logits)
    if not np.isfinite(chance[drafted]).all():
        return None
    return _logits(np.where(drafted, chance, 0.0).astype(np.float64))


def _logits(probability: NDArray[np.float64]) -> NDArray[np.float64]:
    inside = np.clip(probability, _MARGIN, 1 - _MARGIN)
    return np.log(inside) - np.log1p(-inside)
