"""Hazards in numpy as devices have to compute them: what kernels are held against, digit by digit."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from dspark.engine.scheduler.survival import HAZARD_LIMIT, HAZARD_UNIT

_LARGEST_LOGIT = 64.0
_LOG2_E = np.float32(1.4426950408889634)
# ln 2 in two parts: a multiple of the first by a small whole number is exact.
_LN2_HIGH = np.float32(0.693359375)
_LN2_LOW = np.float32(-2.12194440e-4)


def device_hazards(confidence_logits: NDArray[np.float32], temperatures: NDArray[np.float32]) -> NDArray[np.int32]:
    """confidence_logits [R, G <= 31], temperatures [>= G] -> -log a_k [R, G] in units of `HAZARD_UNIT`."""
    logits = np.asarray(confidence_logits, dtype=np.float32)
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        scaled = logits / np.asarray(temperatures, dtype=np.float32)[: logits.shape[1]]
    scaled = np.where(np.isnan(scaled), np.float32(-_LARGEST_LOGIT), scaled)
    np.clip(scaled, -_LARGEST_LOGIT, _LARGEST_LOGIT, out=scaled)
    steps = np.floor(_softplus(-scaled) * np.float32(1 / HAZARD_UNIT) + np.float32(0.5)).astype(np.int32)
    return np.minimum(np.cumsum(steps, axis=1, dtype=np.int32), HAZARD_LIMIT)


def _softplus(x: NDArray[np.float32]) -> NDArray[np.float32]:
    """log(1 + e^x) in fp32 for |x| <= 64, to 2e-7 where it is below 1, of exactly rounded operations alone."""
    return np.maximum(x, np.float32(0)) + _log1p(_exp_of_negative(np.abs(x)))


def _exp_of_negative(y: NDArray[np.float32]) -> NDArray[np.float32]:
    """e^-y: 2^-n e^-r with |r| <= ln 2 / 2, the second by its Taylor series."""
    n = np.floor(y * _LOG2_E + np.float32(0.5))
    r = (y - n * _LN2_HIGH) - n * _LN2_LOW
    series = np.float32(1) - r * np.float32(1 / 7)
    for k in range(6, 0, -1):
        series = np.float32(1) - (r * np.float32(1 / k)) * series
    power = ((127 - n.astype(np.int32)) << 23).view(np.float32)
    return series * power


def _log1p(t: NDArray[np.float32]) -> NDArray[np.float32]:
    """log(1 + t) = 2 artanh(t / (2 + t)) for t in [0, 1], by its series."""
    s = t / (t + np.float32(2))
    square = s * s
    series = np.full_like(s, 1 / 13)
    for k in range(11, 0, -2):
        series = series * square + np.float32(1 / k)
    return (s * np.float32(2)) * series
