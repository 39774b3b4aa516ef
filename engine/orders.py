"""What the host asks of a round."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from dspark.engine.ngram.lookup import Proposals
    from dspark.engine.scheduler.planner import RoundPlan


@dataclass(frozen=True, slots=True)
class RoundOrder:
    """A round of R requests, as far as the host decides it; the device knows better how many tokens each has left."""

    steps: int  # tokens to draft for each request; 0: nothing is drafted
    lengths: np.ndarray  # [R] int64, drafted tokens to verify, at most
    # Of them all, chosen on the device by the survival of this very block; None: whatever `lengths` say.
    budget: int | None = None
    # Whose expectations the round can be held to; None: nobody planned it, or for other requests or another block.
    plan: RoundPlan | None = None
    proposals: Proposals | None = None  # the block itself, where the host drafts

    @property
    def drafted(self) -> np.ndarray:
        """Tokens drafted for each request, [R]."""
        return np.full(len(self.lengths), self.steps) if self.proposals is None else self.proposals.counts

    @property
    def most_tokens(self) -> int:
        """Packed tokens at most."""
        verified = int(self.lengths.sum())
        return len(self.lengths) + (verified if self.budget is None else min(verified, self.budget))
