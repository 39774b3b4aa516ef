"""How likely the drafted tokens are to be accepted (arXiv 2607.05147, section 5.1).

Survival has two forms. `log_survival` is float64 for whoever compares it with a threshold. `hazards` is what candidates
are ranked by where the host does it: -log a_k in fixed point. `dspark.kernels.allocation` ranks by fp32 forms of its
own, which differ in the last digits; no batch is ranked by both.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dspark.engine.scheduler.arrays import HazardArray, RealArray

HAZARD_UNIT = 2.0**-20  # nats
# From here on survival counts as 0.
HAZARD_LIMIT = 64 * 2**20


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
    """confidence_logits [R, G], temperatures [>= G] -> -log a_k in units of `HAZARD_UNIT` [R, G], never falling.

    A logit that is NaN ends its row: survival is 0 from there on, as it is from `HAZARD_LIMIT` on.
    """
    units = np.minimum(np.rint(log_survival(confidence_logits, temperatures) / -HAZARD_UNIT), HAZARD_LIMIT)
    return np.nan_to_num(units, copy=False, nan=HAZARD_LIMIT).astype(np.int32)


def survival(cumulative: ArrayLike) -> NDArray[np.float64]:
    """Hazards of any shape -> a_k."""
    values = np.asarray(cumulative)
    return np.where(values < HAZARD_LIMIT, np.exp(values * -HAZARD_UNIT), 0.0)
