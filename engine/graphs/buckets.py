"""Sizes of batch that have a graph of their own."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from itertools import count, takewhile

from dspark.engine.errors import EngineError

_SMALL_TOKENS = (1, 2, 4, 8, 16, 24, 32)
# (from, up to, step): a bucket wastes at most a quarter of what it computes, an eighth of it from 64 tokens on.
_TOKEN_STEPS = ((40, 64, 8), (80, 128, 16), (160, 256, 32), (320, 512, 64))
_LARGE_STEP = 128
# Up to here attention runs a shape made for short contexts: more steps of K and V in flight, fewer splits to merge.
SHORT_CONTEXT = 1024


@dataclass(frozen=True, slots=True)
class Buckets:
    """Rising sizes; a batch runs in the smallest that holds it."""

    unit: str  # what is counted, for messages
    sizes: tuple[int, ...]

    @property
    def largest(self) -> int:
        """The most that a bucket holds."""
        return self.sizes[-1]

    def bucket_for(self, size: int) -> int:
        """The smallest bucket of at least `size`.

        Raises:
            EngineError: `size` is beyond the largest.
        """
        at = bisect_left(self.sizes, size)
        if at == len(self.sizes):
            raise EngineError(
                f"a batch of {size} {self.unit} is beyond the largest CUDA graph, which holds {self.largest}",
                "Verify fewer tokens a round, or raise the concurrency that graphs are captured for.",
            )
        return self.sizes[at]


def token_buckets(concurrency: int, steps: int) -> Buckets:
    """Buckets of packed tokens, up to `concurrency` requests that verify `steps` tokens each."""
    most = concurrency * (1 + steps)
    sizes = [*_SMALL_TOKENS]
    for first, last, step in _TOKEN_STEPS:
        sizes += range(first, last + 1, step)
    sizes += takewhile(lambda size: size < most, count(sizes[-1] + _LARGE_STEP, _LARGE_STEP))
    return Buckets("packed tokens", (*(size for size in sizes if size < most), most))


def request_buckets(concurrency: int) -> Buckets:
    """Buckets of requests: powers of two, and the concurrency itself."""
    powers = takewhile(lambda size: size < concurrency, (1 << n for n in count()))
    return Buckets("requests", (*powers, concurrency))


def prefill_buckets(most: int) -> Buckets:
    """Buckets of a chunk of prompts' tokens: powers of two, up to the chunk of `most` tokens."""
    powers = takewhile(lambda size: size < most, (1 << n for n in count(6)))
    return Buckets("prompt tokens", (*powers, most))


def context_bucket(context: int, longest: int) -> int:
    """The visible length that attention is shaped for.

    It decides speed alone, never what is seen. Two are enough: within each, splits follow what is really visible.
    """
    return SHORT_CONTEXT if context <= SHORT_CONTEXT < longest else longest
