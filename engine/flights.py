"""What has been launched on the device and not yet been taken in."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dspark.engine.orders import RoundOrder
from dspark.engine.proposals import DraftOutput
from dspark.engine.round_marks import RoundMarks
from dspark.engine.transfer import Download


@dataclass(slots=True)
class Prefill:
    """The first tokens of R requests on their way."""

    rows: np.ndarray  # [R] int64, slots
    serials: np.ndarray  # [R] int64, of the requests that were in them
    result: Download  # [R, fields]


@dataclass(frozen=True, slots=True)
class LaunchedRound:
    """What a runner has launched for R requests."""

    result: Download  # [R, fields + G]
    bucket: int  # packed tokens that the target's batch was padded to; 0: nobody had any
    marks: RoundMarks | None  # None: not measured


@dataclass(slots=True)
class Flight:
    """A round of R requests whose result is on its way."""

    rows: np.ndarray  # [R] int64, slots
    serials: np.ndarray  # [R] int64, of the requests that were in them
    result: Download  # [R, fields + G]
    order: RoundOrder
    bucket: int  # packed tokens that the target's batch was padded to
    draft: DraftOutput | None  # good until the next block is drafted
    marks: RoundMarks | None  # None: not measured
    follows_a_round: bool  # nothing else was launched since the round before

    @property
    def most_ahead(self) -> np.ndarray:
        """Text positions [R] that it moves the anchors by, at most."""
        return self.order.lengths + 1
