"""From confidence logits to the probability that a draft survives up to a position."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

FloatArray = NDArray[np.floating]

# e^-700 is still a normal double: past it the exponential would overflow on the way to a probability of 0.
_LARGEST_EXPONENT = 700.0


def confidence(logits: FloatArray, temperature: float | FloatArray) -> NDArray[np.float64]:
    """logits [..., G], temperature a number or [G] -> c = sigmoid(logit / T), the same shape, in [0, 1]."""
    exponent = np.asarray(logits, dtype=np.float64) / -np.asarray(temperature, dtype=np.float64)
    np.minimum(exponent, _LARGEST_EXPONENT, out=exponent)
    # A logit of a position that was never drafted is NaN and stays NaN; exp(-large) = 0 is what is meant.
    with np.errstate(invalid="ignore", under="ignore"):
        np.exp(exponent, out=exponent)
        exponent += 1.0
        return np.divide(1.0, exponent, out=exponent)


def survival(logits: FloatArray, temperatures: ArrayLike) -> NDArray[np.float64]:
    """logits [N, G], temperatures [G] -> a [N, G], a_k = c_1 ... c_k: the first k drafted tokens are all accepted.

    NaN from the first position on that has no logit.
    """
    with np.errstate(under="ignore"):
        each = confidence(logits, np.asarray(temperatures, dtype=np.float64))
        return np.cumprod(each, axis=1, dtype=np.float64)
