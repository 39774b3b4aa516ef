"""How many drafted tokens of held-out texts the target would accept."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True, slots=True)
class AcceptanceSums:
    """Sums over blocks whose every slot has a label, one entry a slot, [G] float64."""

    survived: np.ndarray  # blocks of which everything before slot k passes
    accepted: np.ndarray  # ... and slot k too
    blocks: int

    @classmethod
    def zero(cls, block_size: int) -> AcceptanceSums:
        """Nothing measured."""
        return cls(np.zeros(block_size), np.zeros(block_size), 0)

    def __add__(self, other: AcceptanceSums) -> AcceptanceSums:
        return AcceptanceSums(
            self.survived + other.survived, self.accepted + other.accepted, self.blocks + other.blocks
        )

    @property
    def conditional(self) -> tuple[float, ...]:
        """Probability [G] that slot k passes if all before it did."""
        return tuple((self.accepted / np.maximum(self.survived, 1e-12)).tolist())

    @property
    def length(self) -> float | None:
        """Expected tokens of a round, the bonus token included; None if there are no blocks."""
        return 1 + float(self.accepted.sum()) / self.blocks if self.blocks else None


@dataclass(frozen=True, slots=True)
class Acceptance:
    """What held-out texts say of a drafter at one step.

    `sampled`: temperature 1, rejection sampling; `greedy`: temperature 0. `loss` is of all held-out positions;
    `confidence_error` the mean distance of confidence from the true probability of acceptance.
    """

    step: int
    sampled_length: float | None
    sampled_conditional: tuple[float, ...]
    greedy_length: float | None
    greedy_conditional: tuple[float, ...]
    loss: float
    confidence_error: float | None
    sampled_blocks: int
    greedy_blocks: int

    @property
    def score(self) -> float:
        """What the best checkpoint has most of: tokens a round at temperature 1, else at 0."""
        length = self.sampled_length if self.sampled_length is not None else self.greedy_length
        assert length is not None, "check_enough() refuses text that measures neither"
        return length

    def to_dict(self) -> dict[str, Any]:
        """As JSON has it."""
        return asdict(self)

    @classmethod
    def from_dict(cls, raw: dict[str, Any]) -> Acceptance:
        """The inverse of `to_dict`."""
        tuples = {name: tuple(raw[name]) for name in ("sampled_conditional", "greedy_conditional")}
        return cls(**(raw | tuples))


def sampled_sums(draft_nll: np.ndarray, target_nll: np.ndarray, distance: np.ndarray) -> AcceptanceSums:
    """Blocks [N, G] along texts that the target sampled at temperature 1.

    Slot k passes with probability 1 - distance / 2. A text's own token x would have been drafted and have passed with
    probability min(p(x), q(x)), and stands here with probability p(x): weighted by min(1, q / p) of every token before,
    texts give the expectation over what speculative sampling itself commits, without bias.
    """
    passes = np.minimum(1.0, np.exp(np.minimum(0.0, target_nll - draft_nll)))
    survived = np.concatenate([np.ones_like(passes[:, :1]), passes[:, :-1].cumprod(axis=1)], axis=1)
    return AcceptanceSums(survived.sum(0), (survived * (1 - distance / 2)).sum(0), len(passes))


def greedy_sums(hits: np.ndarray) -> AcceptanceSums:
    """Blocks [N, G] along greedy texts: a slot passes where the draft's argmax is the text's token."""
    passed = hits.cumprod(axis=1).astype(np.float64)
    survived = np.concatenate([np.ones_like(passed[:, :1]), passed[:, :-1]], axis=1)
    return AcceptanceSums(survived.sum(0), passed.sum(0), len(hits))
