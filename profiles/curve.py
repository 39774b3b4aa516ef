"""The step curve: what the parts of a round cost on one device, looked up by the buckets that will run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from dspark.profiles.errors import ProfileError
from dspark.profiles.measurement import (
    DRAFT_KINDS,
    MOST_TOKENS,
    ONE_TOKEN_KINDS,
    SAMPLED_KINDS,
    TARGET,
    Measurement,
)
from dspark.profiles.staircase import FloatArray, IntArray, Staircase
from dspark.profiles.typed_json import member, refuse

SCOPES = ("target", "round")
_NUMBERS = ("tokens_per_request", "block_width", "reference_context_tokens", "long_context_tokens")
_REQUIRED = ("target", "verify_greedy", "verify_sampled")  # staircases
_OPTIONAL = (*DRAFT_KINDS, "target_long", "draft_long")


@dataclass(frozen=True, slots=True, eq=False)
class StepCurve:
    """Staircases of a round's parts.

    Visible KV tokens of a batch are summed over its requests, each request's own queries included. "At the reference"
    means full blocks: as few requests as can have that many packed tokens, each behind `reference_context_tokens`.

    A batch whose longest request sees more than `long_context_tokens` runs other attention kernels, whose times have
    staircases of their own (None: one kind serves every length).

    A draft block runs its backbone once, and head, Markov walk and confidence once a token: blocks of one token and of
    all of them tell what those in between take. Where the former were not measured, a block takes as long as a whole
    one, and where sampled ones were not, as long as a greedy one.
    """

    target: Staircase  # over packed tokens: the forward and the main-cache write
    draft: Staircase | None  # over requests: a whole block, greedy, with Markov loop and confidence; None: no drafter
    verify_greedy: Staircase  # over requests, load packed tokens: all that verification costs beside the forward
    verify_sampled: Staircase  # the same at temperature 1
    tokens_per_request: int  # 1 + draft length, at most
    block_width: int  # slots of a draft block, 0 without a drafter
    reference_context_tokens: int
    target_long: Staircase | None = None
    draft_long: Staircase | None = None
    long_context_tokens: int | None = None
    draft_one: Staircase | None = None  # a block of which one token is drafted
    draft_sampled: Staircase | None = None  # a whole block at temperature 1
    draft_sampled_one: Staircase | None = None

    def __post_init__(self) -> None:
        if (self.draft is None) != (self.block_width == 0):
            raise ValueError("`draft` and `block_width` disagree on whether anything is drafted")
        if (self.target_long is None) != (self.long_context_tokens is None):
            raise ValueError("long contexts need both a bound and a staircase")
        if self.draft_long is not None and (self.draft is None or self.target_long is None):
            raise ValueError("drafting behind long contexts has a time, but other parts have none")
        by_requests = [stairs for stairs in (self.draft, self.verify_greedy, self.verify_sampled) if stairs is not None]
        if max(stairs.largest for stairs in by_requests) * self.tokens_per_request > MOST_TOKENS:
            raise ValueError(f"full blocks of all requests are more than {MOST_TOKENS} tokens")
        for name in DRAFT_KINDS[1:]:
            stairs = getattr(self, name)
            if stairs is not None and (self.draft is None or not np.array_equal(stairs.buckets, self.draft.buckets)):
                raise ValueError(f"`{name}` has other buckets than `draft`")
        if self.draft_sampled_one is not None and self.draft_sampled is None:
            raise ValueError("sampled blocks of one token have a time, but whole ones have none")

    @property
    def gamma(self) -> int:
        """Tokens that a request may have drafted, 0 without a drafter; a block may have a slot more than that."""
        return self.tokens_per_request - 1

    @property
    def reference_target(self) -> Staircase:
        """The target's staircase that holds the reference."""
        return self._target_behind(None)

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
        self,
        num_tokens: ArrayLike,
        kv_tokens: ArrayLike | None = None,
        *,
        num_requests: ArrayLike | None = None,
        longest_context: int | None = None,
    ) -> FloatArray:
        """Target steps over `num_tokens` packed tokens of `num_requests` (None: at the reference of the bucket).

        longest_context: visible KV tokens of the batch's longest request; None = the reference's.
        """
        stairs = self._target_behind(longest_context)
        return stairs.time_at(num_tokens, kv_tokens, longest=longest_context, requests=num_requests)

    def step_lines(
        self, num_tokens: ArrayLike, *, num_requests: ArrayLike | None = None, longest_context: int | None = None
    ) -> tuple[FloatArray, FloatArray]:
        """The same without visible KV tokens, and seconds that each of them adds."""
        return self._target_behind(longest_context).line_at(num_tokens, longest=longest_context, requests=num_requests)

    def draft_time_s(
        self,
        num_requests: ArrayLike,
        kv_tokens: ArrayLike | None = None,
        *,
        steps: int | None = None,
        sampled: bool = False,
        longest_context: int | None = None,
    ) -> FloatArray:
        """Drafting a block for each of `num_requests`; `kv_tokens` includes the block's own. 0 without a drafter.

        steps: tokens drafted of each block, from 1 to γ; None = γ. sampled: as at temperature 1.

        Raises:
            ProfileError: a block has not so many tokens, or a count is outside what was profiled.
        """
        if self.draft is None:
            return np.zeros(np.shape(num_requests))
        if steps is not None and not 1 <= steps <= self.gamma:
            raise ProfileError(
                f"a block of {steps} drafted tokens has no time: the profile is of blocks of {self.gamma}",
                f"Ask for 1 to {self.gamma}.",
            )
        whole = self.draft_sampled if sampled and self.draft_sampled is not None else self.draft
        one = self.draft_sampled_one if whole is self.draft_sampled else self.draft_one
        time_s = self._block_time_s(whole, num_requests, kv_tokens, longest_context)
        if one is None or steps is None or steps == self.gamma:
            return time_s
        one_s = self._block_time_s(one, num_requests, kv_tokens, longest_context)
        return one_s + (time_s - one_s) * ((steps - 1) / (self.gamma - 1))

    def _block_time_s(
        self, stairs: Staircase, num_requests: ArrayLike, kv_tokens: ArrayLike | None, longest_context: int | None
    ) -> FloatArray:
        """Times of one of the draft's staircases, behind long contexts too."""
        assert self.draft is not None
        time_s = stairs.time_at(num_requests, kv_tokens, longest=longest_context)
        if self.draft_long is None or not self._is_long(longest_context):
            return time_s
        # What other attention kernels take more, the backbone takes more, however many tokens are drafted and how.
        long_s = self.draft_long.time_at(num_requests, kv_tokens, longest=longest_context)
        long_s = time_s + long_s - self.draft.time_at(num_requests, kv_tokens, longest=longest_context)
        return np.maximum(long_s, stairs.time_at(num_requests, 0, longest=0))

    def _target_behind(self, longest_context: int | None) -> Staircase:
        return self.target_long if self.target_long is not None and self._is_long(longest_context) else self.target

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
        draft_steps: int | None = None,
        sampled: bool = False,
    ) -> FloatArray:
        """Target step, verification and, if the round `drafts`, a block of `draft_steps` tokens (None: γ) a request.

        num_requests, kv_tokens: None = at the reference of each batch of `num_tokens`. longest_context: as for
        `step_time_s`.
        """
        tokens = np.asarray(num_tokens, dtype=np.int64)
        requests = self.reference_requests(tokens) if num_requests is None else np.asarray(num_requests, np.int64)
        step = self.step_time_s(tokens, kv_tokens, num_requests=num_requests, longest_context=longest_context)
        step = step + self.verification_time_s(requests, tokens, sampled=sampled)
        if not drafts:
            return step
        # A block sees the same context rows, and its own in place of the verified ones.
        seen = None if kv_tokens is None else np.asarray(kv_tokens) - tokens + requests * self.block_width
        return step + self.draft_time_s(
            requests, seen, steps=draft_steps, sampled=sampled, longest_context=longest_context
        )

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
            return float(
                self.step_time_s(
                    point.bucket,
                    point.load,
                    num_requests=point.num_requests,
                    longest_context=point.longest_context,
                )
            )
        sampled = point.kind in SAMPLED_KINDS
        if point.kind in DRAFT_KINDS:
            return float(
                self.draft_time_s(
                    point.bucket,
                    point.load,
                    steps=1 if point.kind in ONE_TOKEN_KINDS else self.gamma,
                    sampled=sampled,
                    longest_context=point.longest_context,
                )
            )
        return float(self.verification_time_s(point.bucket, point.load, sampled=sampled))

    def to_dict(self) -> dict[str, Any]:
        """Ready for JSON."""
        values = {name: getattr(self, name) for name in (*_NUMBERS, *_REQUIRED, *_OPTIONAL)}
        return {name: value.to_dict() if isinstance(value, Staircase) else value for name, value in values.items()}

    @classmethod
    def from_dict(cls, document: Any, place: str = "curve") -> StepCurve:
        """The reverse; `place` is its name in the document.

        Raises:
            ValueError: it is no step curve.
        """

        def staircase(name: str) -> Any:
            found = member(document, name, Any, place)
            return None if found is None and name in _OPTIONAL else Staircase.from_dict(found, f"{place}.{name}")

        def whole_number(name: str, at_least: int, kind: Any = int) -> Any:
            found = member(document, name, kind, place)
            if found is not None and not at_least <= found <= MOST_TOKENS:
                refuse(f"{place}.{name}", found, f"a whole number of at least {at_least} and at most {MOST_TOKENS}")
            return found

        values = {
            **{name: staircase(name) for name in (*_REQUIRED, *_OPTIONAL)},
            "tokens_per_request": whole_number("tokens_per_request", 1),
            "block_width": whole_number("block_width", 0),
            "reference_context_tokens": whole_number("reference_context_tokens", 1),
            "long_context_tokens": whole_number("long_context_tokens", 1, int | None),
        }
        try:
            return cls(**values)
        except ValueError as error:
            raise ValueError(f"`{place}`: {error}") from None
