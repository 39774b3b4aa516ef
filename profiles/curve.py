"""The step curve: what the parts of a round cost on one device, looked up by the buckets that will run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from dspark.profiles.measurement import DRAFT, MOST_TOKENS, TARGET, VERIFY_SAMPLED, Measurement
from dspark.profiles.staircase import FloatArray, IntArray, Staircase
from dspark.profiles.typed_json import member, refuse

SCOPES = ("target", "round")


@dataclass(frozen=True, slots=True, eq=False)
class StepCurve:
    """Staircases of a round's parts.

    Visible KV tokens of a batch are summed over its requests, each request's own queries included. "At the reference"
    means full blocks: as few requests as can have that many packed tokens, each behind `reference_context_tokens`.

    A batch whose longest request sees more than `long_context_tokens` runs other attention kernels, whose times have
    staircases of their own (None: one kind serves every length).
    """

    target: Staircase  # over packed tokens: the forward and the main-cache write
    draft: Staircase | None  # over requests: block, Markov loop and confidence; None without a drafter
    verify_greedy: Staircase  # over requests, load packed tokens: all that verification costs beside the forward
    verify_sampled: Staircase  # the same at temperature 1
    tokens_per_request: int  # 1 + draft length, at most
    block_width: int  # slots of a draft block, 0 without a drafter
    reference_context_tokens: int
    target_long: Staircase | None = None
    draft_long: Staircase | None = None
    long_context_tokens: int | None = None

    def __post_init__(self) -> None:
        if (self.draft is None) != (self.block_width == 0):
            raise ValueError("`draft` and `block_width` disagree on whether anything is drafted")
        if (self.target_long is None) != (self.long_context_tokens is None):
            raise ValueError("long contexts need both a bound and a staircase")
        if self.draft_long is not None and (self.draft is None or self.target_long is None):
            raise ValueError("drafting behind long contexts has a time, but other parts have none")

    @property
    def gamma(self) -> int:
        """Tokens that a request may have drafted, 0 without a drafter; a block may have a slot more than that."""
        return self.tokens_per_request - 1

    @property
    def reference_target(self) -> Staircase:
        """The target's staircase that holds the reference."""
        return self.target_long if self.target_long is not None and self._is_long(None) else self.target

    @property
    def max_batch_tokens(self) -> int:
        """The largest batch that can be looked up."""
        return self.target.largest

    @property
    def max_requests(self) -> int:
        """Most requests of which every part of a round can be looked up, each with one packed token at least."""
        parts = [self.target, self.verify_greedy, self.verify_sampled, *([] if self.draft is None else [self.draft])]
        return min(part.largest for part in parts)

    def reference_requests(self, num_tokens: ArrayLike) -> IntArray:
        """Requests in a batch of `num_tokens` at the reference."""
        return -(-np.asarray(num_tokens, dtype=np.int64) // self.tokens_per_request)

    def step_time_s(
        self, num_tokens: ArrayLike, kv_tokens: ArrayLike | None = None, *, longest_context: int | None = None
    ) -> FloatArray:
        """Target steps over `num_tokens` packed tokens (None: at the reference of the bucket).

        longest_context: visible KV tokens of the batch's longest request; None = the reference's.
        """
        stairs = self.target_long if self.target_long is not None and self._is_long(longest_context) else self.target
        return stairs.time_at(num_tokens, kv_tokens, longest=longest_context)

    def draft_time_s(
        self, num_requests: ArrayLike, kv_tokens: ArrayLike | None = None, *, longest_context: int | None = None
    ) -> FloatArray:
        """Drafting a block for each of `num_requests`; `kv_tokens` includes the block's own. 0 without a drafter."""
        if self.draft is None:
            return np.zeros(np.shape(num_requests))
        stairs = self.draft_long if self.draft_long is not None and self._is_long(longest_context) else self.draft
        return stairs.time_at(num_requests, kv_tokens, longest=longest_context)

    def _is_long(self, longest_context: int | None) -> bool:
        if longest_context is None:
            longest_context = self.reference_context_tokens + self.tokens_per_request
        return self.long_context_tokens is not None and longest_context > self.long_context_tokens

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
        longest_context: int | None = None,
        drafts: bool = True,
        sampled: bool = False,
    ) -> FloatArray:
        """Target step, verification and, if the next block `drafts`, its drafting.

        num_requests, kv_tokens: None = at the reference of each batch of `num_tokens`. longest_context: as for
        `step_time_s`.
        """
        tokens = np.asarray(num_tokens, dtype=np.int64)
        requests = self.reference_requests(tokens) if num_requests is None else np.asarray(num_requests, np.int64)
        step = self.step_time_s(tokens, kv_tokens, longest_context=longest_context)
        step = step + self.verification_time_s(requests, tokens, sampled=sampled)
        if not drafts:
            return step
        # A block sees the same context rows, and its own in place of the verified ones.
        seen = None if kv_tokens is None else np.asarray(kv_tokens) - tokens + requests * self.block_width
        return step + self.draft_time_s(requests, seen, longest_context=longest_context)

    def steps_per_s(
        self, num_tokens: ArrayLike, kv_tokens: ArrayLike | None = None, *, scope: str = "target"
    ) -> FloatArray:
        """SPS(B): steps a second at batches of B tokens, of the target's forward or of the whole greedy round."""
        assert scope in SCOPES, scope
        if scope == "target":
            return 1 / self.step_time_s(num_tokens, kv_tokens)
        return 1 / self.round_time_s(num_tokens, kv_tokens=kv_tokens)

    def predict(self, point: Measurement) -> float:
        """Seconds of what `point` measured, by the bucket that it ran."""
        if point.kind == TARGET:
            return float(self.step_time_s(point.bucket, point.load, longest_context=point.longest_context))
        if point.kind == DRAFT:
            return float(self.draft_time_s(point.bucket, point.load, longest_context=point.longest_context))
        return float(self.verification_time_s(point.bucket, point.load, sampled=point.kind == VERIFY_SAMPLED))

    def to_dict(self) -> dict[str, Any]:
        """Ready for JSON."""
        return {
            "tokens_per_request": self.tokens_per_request,
            "block_width": self.block_width,
            "reference_context_tokens": self.reference_context_tokens,
            "target": self.target.to_dict(),
            "draft": None if self.draft is None else self.draft.to_dict(),
            "verify_greedy": self.verify_greedy.to_dict(),
            "verify_sampled": self.verify_sampled.to_dict(),
            "long_context_tokens": self.long_context_tokens,
            "target_long": None if self.target_long is None else self.target_long.to_dict(),
            "draft_long": None if self.draft_long is None else self.draft_long.to_dict(),
        }

    @classmethod
    def from_dict(cls, document: Any, place: str = "curve") -> StepCurve:
        """The reverse; `place` is its name in the document.

        Raises:
            ValueError: it is no step curve.
        """

        def staircase(name: str, *, required: bool = False) -> Any:
            found = member(document, name, Any, place)
            return None if found is None and not required else Staircase.from_dict(found, f"{place}.{name}")

        def whole_number(name: str, at_least: int, kind: Any = int) -> Any:
            found = member(document, name, kind, place)
            if found is not None and not at_least <= found <= MOST_TOKENS:
                refuse(f"{place}.{name}", found, f"a whole number of at least {at_least} and at most {MOST_TOKENS}")
            return found

        values = {
            "target": staircase("target", required=True),
            "draft": staircase("draft"),
            "verify_greedy": staircase("verify_greedy", required=True),
            "verify_sampled": staircase("verify_sampled", required=True),
            "tokens_per_request": whole_number("tokens_per_request", 1),
            "block_width": whole_number("block_width", 0),
            "reference_context_tokens": whole_number("reference_context_tokens", 1),
            "target_long": staircase("target_long"),
            "draft_long": staircase("draft_long"),
            "long_context_tokens": whole_number("long_context_tokens", 1, int | None),
        }
        try:
            return cls(**values)
        except ValueError as error:
            raise ValueError(f"`{place}`: {error}") from None
