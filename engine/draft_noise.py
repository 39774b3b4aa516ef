"""Which noise drafted tokens are drawn with."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dspark.kernels import DRAFT, SAMPLE


@dataclass(frozen=True, slots=True)
class DraftNoise:
    """The rule of an acceptance mode.

    By rejection every block that is drafted gets fresh noise, of a stream of its own. Coupled drafts are drawn with the
    target's own noise, which knows no blocks.
    """

    coupled: bool

    @classmethod
    def of(cls, acceptance: str) -> DraftNoise:
        """That of an acceptance mode, as `EngineConfig` spells it."""
        return cls(coupled=acceptance == "coupled")

    @property
    def purpose(self) -> int:
        """The stream."""
        return SAMPLE if self.coupled else DRAFT

    def generations(self, blocks: np.ndarray) -> np.ndarray:
        """blocks [R], drafted so far for each request -> what keys the noise of the present ones, [R]."""
        return np.zeros_like(blocks) if self.coupled else blocks
