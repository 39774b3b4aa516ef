"""Which points are measured."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from dspark.engine.profiling.timer import StepTimer
from dspark.profiles import DRAFT, DRAFT_KINDS, TARGET, VERIFY_GREEDY, VERIFY_SAMPLED

HELD_OUT_POINTS = 24
_APART = 1.5


@dataclass(frozen=True, slots=True)
class Point:
    """One size at which one part of a round is measured."""

    kind: str
    bucket: int  # that is to run
    num_tokens: int
    num_requests: int
    context_tokens: int
    kv_tokens: int
    held_out: bool = False


@dataclass(frozen=True, slots=True)
class Plan:
    """Points to measure and what was left out."""

    points: tuple[Point, ...]
    context_tokens: tuple[int, ...]  # really measured, the reference first
    notes: tuple[str, ...]


def token_ladder(limit: int) -> tuple[int, ...]:
    """Counts 1, 2, 4, then steps of a quarter of the power of two below (at least 4), up to `limit` itself."""
    counts = [1, 2]
    while counts[-1] < limit:
        last = counts[-1]
        counts.append(last + max((1 << (last.bit_length() - 1)) // 4, 2 if last == 2 else 4))
    return (*(c for c in counts if c < limit), limit)


def _ends(contexts: Sequence[int]) -> list[int]:
    """The reference and the longest."""
    return list(dict.fromkeys((contexts[0], max(contexts)))) if contexts else []


class Planner:
    """Chooses points for one timer.

    Args:
        concurrency: requests at once.
        tokens_per_request: most packed tokens of one request, 1 + draft length.
        block_width: slots of a draft block, 0 without a drafter.
        contexts: context lengths asked for, the reference first.
        draft_kinds: of blocks to measure, whole greedy ones the first.
    """

    def __init__(
        self,
        timer: StepTimer,
        *,
        concurrency: int,
        tokens_per_request: int,
        block_width: int,
        contexts: Sequence[int],
        draft_kinds: Sequence[str] = DRAFT_KINDS,
    ) -> None:
        self._timer = timer
        self._concurrency = concurrency
        self._per_request = tokens_per_request
        self._block_width = block_width
        self._draft_kinds = draft_kinds
        longest = timer.longest_context(1)
        self._contexts = tuple(dict.fromkeys(min(context, longest) for context in contexts))
        self._short = timer.short_context
        self._notes = [
            f"A context of {context:,} tokens is longer than the models allow: {longest:,} were measured."
            for context in contexts
            if context > longest
        ]

    def plan(self, rng: np.random.Generator) -> Plan:
        """Points of every part; `rng` picks those that are kept from the fit."""
        target = [p for bucket in self._timer.token_buckets for p in self._target_points(bucket)]
        fitted = {(p.num_tokens, p.num_requests, p.context_tokens) for p in target}
        points = [*target, *self._held_out_points(rng, fitted)]
        for num_requests in self._timer.request_buckets:
            points += self._draft_points(num_requests)
            points += self._verification_points(num_requests)
        return Plan(tuple(points), self._contexts, (*self._notes, *self._memory_notes()))

    def _fewest(self, num_tokens: int) -> int:
        return -(-num_tokens // self._per_request)

    def _most(self, num_tokens: int) -> int:
        return min(num_tokens, self._concurrency)

    def _feasible(self, num_requests: int) -> list[int]:
        """Contexts that so many requests can have; if none of those asked for, the longest they can."""
        longest = self._timer.longest_context(num_requests)
        return [c for c in self._contexts if c <= longest] or ([longest] if longest >= 1 else [])

    def _two_kinds(self, num_requests: int, block: int) -> list[int]:
        """What is feasible, and the contexts either side of where attention changes its kernels: a line each."""
        feasible = self._feasible(num_requests)
        if self._short is None:
            return feasible
        longest = self._timer.longest_context(num_requests)
        edges = (self._short - block, self._short)
        return [*feasible, *(c for c in edges if 1 <= c <= longest and c not in feasible)]

    def _target_points(self, bucket: int) -> Iterator[Point]:
        """Full blocks behind each context, and as many requests as there can be behind the reference and the longest.

        Two request counts that are nearly one teach nothing.
        """
        fewest, most = self._fewest(bucket), self._most(bucket)
        for context in self._two_kinds(fewest, -(-bucket // fewest)):
            yield self._target_point(bucket, bucket, fewest, context)
        if most >= _APART * fewest:
            feasible = self._two_kinds(most, -(-bucket // most))
            for context in _ends(feasible) if self._short is None else feasible:
                yield self._target_point(bucket, bucket, most, context)

    def _target_point(self, bucket: int, tokens: int, requests: int, context: int, *, held_out: bool = False) -> Point:
        return Point(TARGET, bucket, tokens, requests, context, requests * context + tokens, held_out)

    def _draft_points(self, num_requests: int) -> Iterator[Point]:
        """Whole greedy blocks behind every context; the others differ from them by what no context changes."""
        if not self._block_width:
            return
        contexts = self._two_kinds(num_requests, self._block_width)
        for context in _ends(contexts) if self._short is None else contexts:
            yield self._draft_point(DRAFT, num_requests, context)
        for context in contexts[:1]:
            most = context if self._short is None else self._short - self._block_width
            for kind in self._draft_kinds[1:]:
                yield self._draft_point(kind, num_requests, min(context, most))

    def _draft_point(self, kind: str, requests: int, context: int) -> Point:
        tokens = requests * self._block_width
        return Point(kind, requests, tokens, requests, context, requests * context + tokens)

    def _verification_points(self, num_requests: int) -> Iterator[Point]:
        """Full blocks and none; the context does not matter."""
        most = self._timer.token_buckets[-1]
        for context in self._feasible(num_requests)[:1]:
            for tokens in dict.fromkeys((num_requests, min(num_requests * self._per_request, most))):
                for kind in (VERIFY_GREEDY, VERIFY_SAMPLED):
                    kv_tokens = num_requests * context + tokens
                    # No batch of so many requests is run where the largest holds fewer tokens.
                    if num_requests <= tokens <= most:
                        yield Point(kind, num_requests, tokens, num_requests, context, kv_tokens)

    def _held_out_points(self, rng: np.random.Generator, fitted: set[tuple[int, int, int]]) -> Iterator[Point]:
        """Sizes between the fitted ones: any token count, request count and context, one a part of the ladder."""
        buckets = self._timer.token_buckets
        low, high = min(self._contexts), max(self._contexts)
        for index in np.unique(np.linspace(0, len(buckets) - 1, HELD_OUT_POINTS).round().astype(int)):
            before = buckets[index - 1] if index else 0
            tokens = int(rng.integers(before + 1, buckets[index] + 1))
            requests = int(rng.integers(self._fewest(tokens), self._most(tokens) + 1))
            longest = min(high, self._timer.longest_context(requests))
            if longest < 1:
                continue
            context = round(math.exp(rng.uniform(math.log(min(low, longest)), math.log(longest))))
            if (tokens, requests, context) not in fitted:
                yield self._target_point(buckets[index], tokens, requests, context, held_out=True)

    def _memory_notes(self) -> Iterator[str]:
        for context in self._contexts:
            fitting = [n for n in range(1, self._concurrency + 1) if self._timer.longest_context(n) >= context]
            most = max(fitting, default=0)
            if most < self._concurrency:
                yield (
                    f"The KV memory holds {most} of {self._concurrency} requests with {context:,} tokens of context: "
                    "larger batches were measured behind shorter ones."
                )
