"""How likely the drafted tokens are to be accepted."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.floating]


def log_confidence(confidence_logits: FloatArray, temperatures: FloatArray) -> NDArray[np.float64]:
    """confidence_logits [R, G], temperatures [>= G] -> log c_k [R, G], c_k = sigmoid(logit_k / T_k)."""
    logits = np.asarray(confidence_logits, dtype=np.float64)
    scaled = logits / np.asarray(temperatures, dtype=np.float64)[: logits.shape[1]]
    # A missing logit stays NaN, which no threshold lets through, and says nothing on the way.
    with np.errstate(invalid="ignore", under="ignore"):
        return -np.logaddexp(0.0, -scaled)


def log_survival(confidence_logits: FloatArray, temperatures: FloatArray) -> NDArray[np.float64]:
    """The same shapes -> log a_k [R, G], a_k = c_1 ... c_k: the chance that the first k draft tokens all pass."""
    # Adding values of at most 0 never increases a sum, rounded or not, so survival falls along every row.
    return np.cumsum(log_confidence(confidence_logits, temperatures), axis=1)
