"""How the target's tokens were chosen: what a calibration holds for."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields

import numpy as np

from dspark.calibration.columns import UNKNOWN
from dspark.calibration.traces import Traces


@dataclass(frozen=True, slots=True)
class SamplingSettings:
    """Temperature 0 is greedy, top-k 0 and top-p 1 are off. None: not recorded."""

    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None

    def same_as(self, other: SamplingSettings) -> bool:
        """Greedy decoding is the same under every top-k and top-p."""
        if self.temperature == 0 and other.temperature == 0:
            return True
        return all(_equal(getattr(self, f.name), getattr(other, f.name)) for f in fields(self))

    def __str__(self) -> str:
        return ", ".join(
            f"{f.name.replace('_', '-')} {'not recorded' if getattr(self, f.name) is None else getattr(self, f.name)}"
            for f in fields(self)
        )


def sampling_settings(traces: Traces) -> tuple[SamplingSettings, ...]:
    """The different settings of the rounds."""
    # NaN is not equal to itself, so what is not known is -1 in every column here.
    columns = [np.nan_to_num(c, nan=UNKNOWN) for c in (traces.temperature, traces.top_k, traces.top_p)]
    code = np.zeros(len(traces), dtype=np.int64)
    for column in columns:
        values, codes = np.unique(column, return_inverse=True)
        code = code * len(values) + codes
    rows = np.unique(code, return_index=True)[1]
    return tuple(
        SamplingSettings(
            temperature=_decimal(columns[0][row]),
            top_k=None if columns[1][row] == UNKNOWN else int(columns[1][row]),
            top_p=_decimal(columns[2][row]),
        )
        for row in rows
    )


def _decimal(value: np.float32) -> float | None:
    """Shortest decimal of an fp32 number: 0.7, not 0.699999988."""
    return None if value == UNKNOWN else float(str(value))


def _equal(a: float | None, b: float | None) -> bool:
    return a is not None and b is not None and math.isclose(a, b, rel_tol=1e-6)
