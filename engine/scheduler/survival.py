"""How likely the drafted tokens are to be accepted (arXiv 2607.05147, section 5.1).

Survival has two forms. `log_survival` is float64 for whoever compares it with a threshold. `hazards` is what candidates
are ranked by: -log a_k in fixed point. Every operation on the way is exactly rounded and sums of integers have no
order, so numpy, torch and Triton give the same numbers and rank candidates the same.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dspark.engine.scheduler.arrays import HazardArray, RealArray

HAZARD_UNIT = 2.0**-20  # nats
_LARGEST_LOGIT = 64.0
# From here on survival counts as 0. Up to 31 positions add up without an overflow.
HAZARD_LIMIT = int(_LARGEST_LOGIT / HAZARD_UNIT)

_LOG2_E = np.float32(1.4426950408889634)
# ln 2 in two parts: a multiple of the first by a small whole number is exact.
_LN2_HIGH = np.float32(0.693359375)
_LN2_LOW = np.float32(-2.12194440e-4)


def log_confidence(confidence_logits: RealArray, temperatures: RealArray) -> NDArray[np.float64]:
    """confidence_logits [R, G], temperatures [>= G] -> log c_k [R, G], c_k = sigmoid(logit_k / T_k)."""
    logits = np.asarray(confidence_logits, dtype=np.float64)
    scaled = logits / np.asarray(temperatures, dtype=np.float64)[: logits.shape[1]]
    # A missing logit stays NaN, which no threshold lets through, and says nothing on the way.
    with np.errstate(invalid="ignore", under="ignore"):
        return -np.logaddexp(0.0, -scaled)


def log_survival(confidence_logits: RealArray, temperatures: RealArray) -> NDArray[np.float64]:
    """The same shapes -> log a_k [R, G], a_k = c_1 ... c_k: the chance that the first k draft tokens all pass."""
    # Adding values of at most 0 never increases a sum, rounded or not, so survival falls along every row.
    return np.cumsum(log_confidence(confidence_logits, temperatures), axis=1)


def hazards(confidence_logits: RealArray, temperatures: RealArray) -> HazardArray:
    """confidence_logits [R, G <= 31], temperatures [>= G] -> -log a_k in units of `HAZARD_UNIT` [R, G], never falling.

    A logit that is NaN ends its row: survival is 0 from there on, as it is from `HAZARD_LIMIT` on.
    """
    logits = np.asarray(confidence_logits, dtype=np.float32)
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        scaled = logits / np.asarray(temperatures, dtype=np.float32)[: logits.shape[1]]
    scaled = np.where(np.isnan(scaled), np.float32(-_LARGEST_LOGIT), scaled)
    np.clip(scaled, -_LARGEST_LOGIT, _LARGEST_LOGIT, out=scaled)
    steps = np.floor(_softplus(-scaled) * np.float32(1 / HAZARD_UNIT) + np.float32(0.5)).astype(np.int32)
    return np.minimum(np.cumsum(steps, axis=1, dtype=np.int32), HAZARD_LIMIT)


def host_hazards(confidence_logits: RealArray, temperatures: RealArray) -> HazardArray:
    """What `hazards` gives, up to the last digits and several times as fast: for blocks that no device ranks too."""
    units = np.minimum(np.rint(log_survival(confidence_logits, temperatures) / -HAZARD_UNIT), HAZARD_LIMIT)
    return np.nan_to_num(units, copy=False, nan=HAZARD_LIMIT).astype(np.int32)


def survival(cumulative: ArrayLike) -> NDArray[np.float64]:
    """Hazards of any shape -> a_k."""
    values = np.asarray(cumulative)
    return np.where(values < HAZARD_LIMIT, np.exp(values * -HAZARD_UNIT), 0.0)


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
