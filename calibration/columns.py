"""Columns of a trace: converted to their types, and refused outside what a recorder can have seen."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dspark.calibration.errors import CalibrationError

UNKNOWN = -1  # a whole-number column that was not recorded; fractional ones hold NaN

_LARGEST_COUNT = np.iinfo(np.int16).max


@dataclass(frozen=True, slots=True)
class ColumnKind:
    """Values from `low` to `high`, both included; a column of fractions may also hold NaN."""

    dtype: type[np.generic]
    low: float
    high: float
    remedy: str

    @property
    def whole(self) -> bool:
        """Of whole numbers only."""
        return np.issubdtype(self.dtype, np.integer)


def _anything(dtype: type[np.signedinteger[Any]], remedy: str) -> ColumnKind:
    return ColumnKind(dtype, int(np.iinfo(dtype).min), int(np.iinfo(dtype).max), remedy)


_COUNT = _anything(np.int16, f"Give whole numbers from 0 to {_LARGEST_COUNT}.")
_INT64, _INT32 = int(np.iinfo(np.int64).max), int(np.iinfo(np.int32).max)

# What a request may be sampled with, as `SamplingParams` has it; a tiny top-p is 0 in fp32.
COLUMNS = {
    "request": _anything(np.int64, "Give whole numbers of at most 64 bits."),
    "round": ColumnKind(np.int64, 0, _INT64, "Count the rounds of a request from 0 on."),
    "text_position": ColumnKind(np.int64, UNKNOWN, _INT64, "Give positions from 0 on, or leave it empty."),
    **dict.fromkeys(("drafted", "verified", "observed", "accepted"), _COUNT),
    "temperature": ColumnKind(np.float32, 0, 1e6, "Give numbers from 0 (greedy) to 1e6, or leave it empty."),
    "top_k": ColumnKind(np.int32, UNKNOWN, _INT32, "Give whole numbers from 0 (off) on, or leave it empty."),
    "top_p": ColumnKind(np.float32, 0, 1, "Give numbers above 0 and up to 1 (1 = off), or leave it empty."),
}


def checked_column(name: str, values: ArrayLike, *, rows: int, source: str) -> NDArray[Any]:
    """A column of `COLUMNS`, [N] or one value for all `rows` -> [N] of its type.

    Raises:
        CalibrationError: another shape, something that is no number, or a value outside what the column may hold.
    """
    kind = COLUMNS[name]
    array = np.asarray(values)
    if array.ndim == 0:
        array = np.full(rows, array)
    if array.shape != (rows,):
        raise CalibrationError(
            f"{source}: column `{name}` has shape {array.shape} beside {rows} rows of logits",
            "Give one value a round.",
        )
    try:
        numbers = array.astype(np.float64) if array.dtype == object else array
        # Times and texts would convert to numbers that nobody wrote.
        if numbers.dtype.kind not in "biuf" or (kind.whole and not (numbers == np.floor(numbers)).all()):
            raise ValueError
    except (TypeError, ValueError):
        wanted = "whole numbers" if kind.whole else "numbers"
        raise CalibrationError(
            f"{source}: column `{name}` does not hold {wanted} only", "Correct the column."
        ) from None
    # As floats the limits of 64 bits round up, to a number that is one too large.
    above = numbers >= kind.high + 1.0 if kind.whole and numbers.dtype.kind == "f" else numbers > kind.high
    wrong = (numbers < kind.low) | above
    if wrong.any():
        row = int(wrong.argmax())
        raise CalibrationError(
            f"{source}: column `{name}` has {numbers[row]} in row {row}, "
            f"which is {'above' if above[row] else 'below'} what it may be",
            kind.remedy,
        )
    return numbers.astype(kind.dtype)


def fp32(values: ArrayLike) -> NDArray[np.float32]:
    """A copy in fp32; what is too large for it becomes infinite, for the caller to find."""
    with np.errstate(over="ignore"):
        return np.array(values, dtype=np.float32)
