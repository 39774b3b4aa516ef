"""What has been launched on the device and not yet been taken in."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dspark.engine.proposals import DraftOutput
from dspark.engine.transfer import Download


@dataclass(slots=True)
class Flight:
    """A round of R requests, or the end of a prefill, whose result is on its way."""

    rows: np.ndarray  # [R] int64, slots
    serials: np.ndarray  # [R] int64, of the requests that were in them
    result: Download  # [R, fields + G]
    most_ahead: np.ndarray  # [R] int64, text positions that it moves the anchors by, at most
    is_round: bool = True
    steps: int = 0  # tokens drafted for each request
    draft: DraftOutput | None = None  # while it is the newest
