"""Types of the scheduler's arrays."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
HazardArray = NDArray[np.int32]  # -log survival in fixed point: see survival.py
RealArray = NDArray[np.floating]  # fp32 or wider
