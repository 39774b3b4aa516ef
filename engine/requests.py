"""What goes into the engine and what comes out, one record a request."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import zip_longest

from dspark.engine.errors import RequestError
from dspark.engine.value_kinds import is_number, is_whole
from dspark.engine.wording import shown

_MAX_SEED = 2**64
_MAX_COUNT = 2**31 - 1


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How the tokens of one request are chosen and where they end.

    `temperature` 0 is argmax, lowest token id first. `top_k` 0 (or -1, which becomes 0) and `top_p` 1 are off. `seed`
    None: the engine derives one from its own seed and the request's index.

    Raises:
        RequestError: a value is of the wrong type or outside what it may be.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    max_tokens: int = 256
    seed: int | None = None
    stop: tuple[str, ...] = ()
    ignore_eos: bool = False

    def __post_init__(self) -> None:
        # `0 <= huge int` is fine but float(huge int) overflows, hence the bounds instead of math.isfinite alone.
        if not is_number(self.temperature) or not 0 <= self.temperature <= 1e6 or math.isnan(self.temperature):
            raise RequestError(f"temperature is {shown(self.temperature)}", "Give a number from 0 (greedy) to 1e6.")
        # Other engines spell "off" as -1.
        if is_whole(self.top_k) and self.top_k == -1:
            object.__setattr__(self, "top_k", 0)
        if not is_whole(self.top_k) or not 0 <= self.top_k <= _MAX_COUNT:
            raise RequestError(f"top_k is {shown(self.top_k)}", f"Give a whole number from 0 (off) to {_MAX_COUNT}.")
        if not is_number(self.top_p) or not 0 < self.top_p <= 1:
            raise RequestError(f"top_p is {shown(self.top_p)}", "Give a number above 0 and up to 1 (1 = off).")
        if not is_whole(self.max_tokens) or not 1 <= self.max_tokens <= _MAX_COUNT:
            raise RequestError(
                f"max_tokens is {shown(self.max_tokens)}", f"Give a whole number from 1 to {_MAX_COUNT}."
            )
        if self.seed is not None and (not is_whole(self.seed) or not -_MAX_SEED < self.seed < _MAX_SEED):
            raise RequestError(f"seed is {shown(self.seed)}", "Give a whole number of at most 64 bits.")
        if not isinstance(self.stop, tuple) or not all(isinstance(text, str) and text for text in self.stop):
            raise RequestError("stop holds something that is no text, or an empty one", "Give non-empty texts.")


@dataclass(frozen=True, slots=True)
class Request:
    """One text to continue. `index` names it in the completion and, without a seed, in its random numbers."""

    index: int
    prompt_token_ids: Sequence[int]
    sampling: SamplingParams = field(default_factory=SamplingParams)


class NotYet:
    """Given by a source of requests in place of one: none is there now, and more may come once others are done.

    A source says so only while requests of its own are being decoded; one that has none waits by itself, or ends.
    """


NOT_YET = NotYet()


@dataclass(frozen=True, slots=True)
class SpecCounts:
    """What speculation did for one request.

    `observed` positions are those whose acceptance is known: every position before was accepted, and no stop or limit
    came first. `emitted` = completion tokens less the one that prefill gives. `acceptance_histogram[k]` is the number
    of rounds that accepted k drafted tokens.
    """

    rounds: int = 0
    drafted: int = 0
    verified: int = 0
    observed: int = 0
    accepted: int = 0
    emitted: int = 0
    acceptance_histogram: tuple[int, ...] = ()

    def __add__(self, other: SpecCounts) -> SpecCounts:
        histograms = zip_longest(self.acceptance_histogram, other.acceptance_histogram, fillvalue=0)
        return SpecCounts(
            rounds=self.rounds + other.rounds,
            drafted=self.drafted + other.drafted,
            verified=self.verified + other.verified,
            observed=self.observed + other.observed,
            accepted=self.accepted + other.accepted,
            emitted=self.emitted + other.emitted,
            acceptance_histogram=tuple(mine + others for mine, others in histograms),
        )


@dataclass(frozen=True, slots=True)
class Completion:
    """The outcome of one request.

    `text` is set only where the engine had to follow the text itself, because a stop string ended it; elsewhere the
    caller decodes `token_ids`, whose last one is the stop token if a stop token ended it.
    """

    index: int
    token_ids: list[int]
    text: str | None
    finish_reason: str
    error: str | None
    counts: SpecCounts

    @classmethod
    def failed(cls, index: int, error: str) -> Completion:
        """A request that could not be decoded."""
        return cls(index=index, token_ids=[], text=None, finish_reason="error", error=error, counts=SpecCounts())
