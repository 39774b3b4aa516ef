"""The step curve: what the parts of a round cost on one device, looked up by the buckets that will run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from dspark.profiles.staircase import FloatArray, IntArray, Staircase

SCOPES = ("target", "round")


@dataclass(frozen=True, slots=True, eq=False)
class StepCurve:
    """Staircases of a round's parts.

    Visible KV tokens of a batch are summed over its requests, each request's own queries included. "At the reference"
    means full blocks: as few requests as can have that many packed tokens, each behind `reference_context_tokens`.
    """

    target: Staircase  # over packed tokens: the forward and the main-cache write
    draft: Staircase | None  # over requests: block, Markov loop and confidence; None without a drafter
    verify_greedy: Staircase  # over requests, load packed tokens: all that verification costs beside the forward
    verify_sampled: Staircase  # the same at temperature 1
    tokens_per_request: int  # 1 + draft length, at most
    block_size: int  # slots of a draft block, 0 without a drafter
    reference_context_tokens: int

    @property
    def max_batch_tokens(self) -> int:
        """The largest batch that can be looked up."""
        return self.target.largest

    def reference_requests(self, num_tokens: ArrayLike) -> IntArray:
        """Requests in a batch of `num_tokens` at the reference."""
        return -(-np.asarray(num_tokens, dtype=np.int64) // self.tokens_per_request)

    def reference_kv_tokens(self, num_tokens: ArrayLike) -> IntArray:
        """Visible KV tokens of a batch of `num_tokens` at the reference."""
        tokens = np.asarray(num_tokens, dtype=np.int64)
        return self.reference_requests(tokens) * self.reference_context_tokens + tokens

    def step_time_s(self, num_tokens: ArrayLike, kv_tokens: ArrayLike | None = None) -> FloatArray:
        """Target steps over `num_tokens` packed tokens (None: at the reference of the bucket)."""
        return self.target.time_at(num_tokens, kv_tokens)

    def draft_time_s(self, num_requests: ArrayLike, kv_tokens: ArrayLike | None = None) -> FloatArray:
        """Drafting a block for each of `num_requests`; `kv_tokens` includes the block's own. 0 without a drafter."""
        if self.draft is None:
            return np.zeros(np.shape(num_requests))
        return self.draft.time_at(num_requests, kv_tokens)

    def verification_time_s(
        self, num_requests: ArrayLike, num_tokens: ArrayLike | None = None, *, sampled: bool = False
    ) -> FloatArray:
        """What verifying packed tokens costs beside the forward (None: full blocks)."""
        return (self.verify_sampled if sampled else self.verify_greedy).time_at(num_requests, num_tokens)

    def round_time_s(
        self,
        num_tokens: ArrayLike,
        *,
        num_requests: ArrayLike | None = None,
        kv_tokens: ArrayLike | None = None,
        drafts: bool = True,
        sampled: bool = False,
    ) -> FloatArray:
        """Target step, verification and, if the next block `drafts`, its drafting.

        num_requests, kv_tokens: None = at the reference of each batch of `num_tokens`.
        """
        tokens = np.asarray(num_tokens, dtype=np.int64)
        requests = self.reference_requests(tokens) if num_requests is None else np.asarray(num_requests, np.int64)
        step = self.step_time_s(tokens, kv_tokens) + self.verification_time_s(requests, tokens, sampled=sampled)
        if not drafts:
            return step
        # A block sees the same context rows, and its own in place of the verified ones.
        seen = None if kv_tokens is None else np.asarray(kv_tokens) - tokens + requests * self.block_size
        return step + self.draft_time_s(requests, seen)

    def steps_per_s(
        self, num_tokens: ArrayLike, kv_tokens: ArrayLike | None = None, *, scope: str = "target"
    ) -> FloatArray:
        """SPS(B): steps a second at batches of B tokens, of the target's forward or of the whole greedy round."""
        assert scope in SCOPES, scope
        if scope == "target":
            return 1 / self.step_time_s(num_tokens, kv_tokens)
        return 1 / self.round_time_s(num_tokens, kv_tokens=kv_tokens)

    def to_dict(self) -> dict[str, Any]:
        """Ready for JSON."""
        return {
            "tokens_per_request": self.tokens_per_request,
            "block_size": self.block_size,
            "reference_context_tokens": self.reference_context_tokens,
            "target": self.target.to_dict(),
            "draft": None if self.draft is None else self.draft.to_dict(),
            "verify_greedy": self.verify_greedy.to_dict(),
            "verify_sampled": self.verify_sampled.to_dict(),
        }

    @classmethod
    def from_dict(cls, document: Any) -> StepCurve:
        """The reverse.

        Raises:
            KeyError, TypeError, ValueError: it is no step curve.
        """
        numbers = {
            name: _whole_number(document, name, at_least)
            for name, at_least in (("tokens_per_request", 1), ("block_size", 0), ("reference_context_tokens", 1))
        }
        draft = document["draft"]
        return cls(
            target=Staircase.from_dict(document["target"]),
            draft=None if draft is None else Staircase.from_dict(draft),
            verify_greedy=Staircase.from_dict(document["verify_greedy"]),
            verify_sampled=Staircase.from_dict(document["verify_sampled"]),
            **numbers,
        )


def _whole_number(document: Any, name: str, at_least: int) -> int:
    value = document[name]
    if isinstance(value, bool) or not isinstance(value, int) or value < at_least:
        raise ValueError(f"{name} is {value!r}, not a whole number of at least {at_least}")
    return value
