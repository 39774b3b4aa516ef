"""A calibration as other engines read it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from dspark.calibration.artefact import Calibration

_DIGITS = 6


def sts_document(calibration: Calibration) -> dict[str, Any]:
    """What SGLang and TensorRT-LLM load; the one reads `temperatures`, the other either key.

    The lists of ECE are left empty if a position was never measured: they may hold nothing but numbers.
    """
    temperatures = list(calibration.temperatures)
    before = [position.metrics.before.ece for position in calibration.positions]
    after = [position.metrics.after.ece for position in calibration.positions]
    measured = None not in before and None not in after
    return {
        "temperatures": temperatures,
        "sts_temperatures": temperatures,
        "dataset": ", ".join(calibration.fitted_on.datasets),
        "num_samples": calibration.fitted_on.rounds,
        "ece_before": before if measured else [],
        "ece_after": after if measured else [],
    }


def temperature_tuple(temperatures: Sequence[float]) -> str:
    """A Python tuple, ready to paste."""
    return repr(tuple(float(f"{t:.{_DIGITS}g}") for t in temperatures))


def mean_survival(calibration: Calibration) -> list[float]:
    """Mean calibrated survival a_k [G] of measured rounds, never rising; 0 from the first unmeasured position on."""
    means = [position.metrics.after.mean_prediction for position in calibration.positions]
    known = means[: means.index(None)] if None in means else means
    falling = np.minimum.accumulate(np.array([*known, *[0.0] * (len(means) - len(known))], dtype=np.float64))
    return [float(value) for value in falling]
