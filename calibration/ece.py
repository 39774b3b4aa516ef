"""Expected calibration error, the bins behind it, and what it is on a sample of perfectly calibrated numbers."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dspark.calibration.errors import CalibrationError

DEFAULT_BINS = 20
MOST_BINS = 1000

# Cells a bin is cut into to redraw labels: within 1/50 of a bin the probabilities count as equal.
_CELLS_PER_BIN = 50
_EXACT_UP_TO = 2048


@dataclass(frozen=True, slots=True)
class ReliabilityBins:
    """What was predicted and what happened, in bins of equal width over [0, 1]; an empty bin predicts None."""

    count: tuple[int, ...]  # [bins]
    positives: tuple[int, ...]  # [bins]
    mean_prediction: tuple[float | None, ...]  # [bins]

    @property
    def ece(self) -> float | None:
        """Mean over rows of |mean prediction - mean label| of the row's bin; None of no rows."""
        total = sum(self.count)
        if total == 0:
            return None
        rows = zip(self.count, self.positives, self.mean_prediction, strict=True)
        return sum(abs(mean * n - hits) for n, hits, mean in rows if mean is not None) / total


@dataclass(frozen=True, slots=True)
class EceNull:
    """ECE of labels redrawn from the predictions themselves: what perfect calibration shows at this sample size."""

    mean: float
    high: float  # 95 % of the redrawn samples are at or below it


def check_bins(bins: int) -> None:
    """Refuse a number of bins that ECE is not measured in.

    Raises:
        CalibrationError: it is not from 1 to `MOST_BINS`.
    """
    if not 1 <= bins <= MOST_BINS:
        raise CalibrationError(
            f"ECE cannot be measured in {bins} bins", f"Give a whole number of bins from 1 to {MOST_BINS}."
        )


def bin_index(probability: NDArray[np.floating], bins: int) -> NDArray[np.intp]:
    """Equal-width bins, floor(p x bins) in the precision of p; the last bin is closed, so that p = 1 lies in it."""
    index = (probability * probability.dtype.type(bins)).astype(np.intp)
    return np.minimum(index, bins - 1, out=index)


def reliability_bins(probability: ArrayLike, label: ArrayLike, *, bins: int = DEFAULT_BINS) -> ReliabilityBins:
    """probability [N] in [0, 1], label [N] of 0 and 1.

    Raises:
        CalibrationError: shapes differ, or a value is no probability or no label.
    """
    p, y = _checked(probability, label, bins)
    index = bin_index(p, bins)
    count = np.bincount(index, minlength=bins)
    positives = np.bincount(index, weights=y, minlength=bins)
    predicted = np.bincount(index, weights=p, minlength=bins)
    return ReliabilityBins(
        count=tuple(count.tolist()),
        positives=tuple(positives.astype(np.int64).tolist()),
        mean_prediction=tuple(float(total / n) if n else None for total, n in zip(predicted, count, strict=True)),
    )


def expected_calibration_error(probability: ArrayLike, label: ArrayLike, *, bins: int = DEFAULT_BINS) -> float | None:
    """Mean over rows of |mean prediction - mean label| of the row's bin; None of no rows."""
    return reliability_bins(probability, label, bins=bins).ece


def ece_null(
    probability: ArrayLike, *, rng: np.random.Generator, bins: int = DEFAULT_BINS, draws: int = 200
) -> EceNull | None:
    """Redraw all labels from probability [N] `draws` times and measure each; None of no rows.

    Large samples are first gathered into cells of nearly equal probability, whose number of accepted rows is one
    binomial draw: the cost does not grow with N.
    """
    p, _ = _checked(probability, np.zeros(np.shape(probability), dtype=bool), bins)
    if p.size == 0:
        return None
    p64 = p.astype(np.float64)
    if p.size <= _EXACT_UP_TO:
        bin_of, count, mean = bin_index(p, bins), np.ones(p.size, dtype=np.int64), p64
    else:
        bin_of, count, mean = _cells(p64, bins)
    excess = rng.binomial(count, mean, size=(draws, count.size)) - count * mean  # [draws, cells]
    order = np.argsort(bin_of, kind="stable")
    starts = np.flatnonzero(np.diff(bin_of[order], prepend=-1))
    eces = np.abs(np.add.reduceat(excess[:, order], starts, axis=1)).sum(axis=1) / p.size
    return EceNull(mean=float(eces.mean()), high=float(np.quantile(eces, 0.95)))


def _cells(p: NDArray[np.float64], bins: int) -> tuple[NDArray[np.intp], NDArray[np.int64], NDArray[np.float64]]:
    """Non-empty cells of p: the bin each lies in, its rows and their mean."""
    bin_of = bin_index(p, bins)
    within = np.clip((p * bins - bin_of) * _CELLS_PER_BIN, 0, _CELLS_PER_BIN - 1).astype(np.intp)
    cell = bin_of * _CELLS_PER_BIN + within
    count = np.bincount(cell, minlength=bins * _CELLS_PER_BIN)
    used = np.flatnonzero(count)
    mean = np.bincount(cell, weights=p, minlength=count.size)[used] / count[used]
    return used // _CELLS_PER_BIN, count[used].astype(np.int64), np.clip(mean, 0.0, 1.0)


def _checked(probability: ArrayLike, label: ArrayLike, bins: int) -> tuple[NDArray[np.floating], NDArray[np.float64]]:
    p = np.asarray(probability)
    if not np.issubdtype(p.dtype, np.floating):
        p = p.astype(np.float64)
    y = np.asarray(label, dtype=np.float64)
    check_bins(bins)
    if p.ndim != 1 or p.shape != y.shape:
        raise CalibrationError(
            f"probabilities of shape {p.shape} and labels of shape {y.shape} do not belong together",
            "Give one label a probability.",
        )
    # Written so that NaN fails too.
    if not np.all((p >= 0) & (p <= 1)):
        raise CalibrationError("a predicted probability is not in [0, 1]", "Give probabilities, not logits.")
    if not np.all((y == 0) | (y == 1)):
        raise CalibrationError("a label is neither 0 nor 1", "Give 1 for accepted and 0 for rejected.")
    return p, y
