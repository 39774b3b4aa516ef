"""From measurements of every part of a round to the step curve that fits them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from dspark.profiles import (
    DRAFT,
    DRAFT_ONE,
    DRAFT_SAMPLED,
    DRAFT_SAMPLED_ONE,
    TARGET,
    VERIFY_GREEDY,
    VERIFY_SAMPLED,
    Measurement,
    Staircase,
    StepCurve,
    complete,
    fit_alike,
    fit_staircase,
)

_KV_TOKENS, _PACKED_TOKENS = "visible KV tokens", "packed tokens"


def fitted(measurements: Sequence[Measurement], kind: str) -> list[Measurement]:
    """Those of `kind` that are not kept from the fit."""
    return [m for m in measurements if m.kind == kind and not m.held_out]


def fit_curve(
    measurements: Sequence[Measurement], *, context_tokens: int, gamma: int, block_width: int, short_context: int | None
) -> StepCurve:
    """Fit a staircase to each part that was measured.

    Args:
        context_tokens: of the reference.
        gamma, block_width: drafted tokens and slots of a block, 0 without a drafter.
        short_context: visible tokens of the longest request past which other attention kernels run; None: one kind.
    """
    per_request = 1 + gamma
    bound = math.inf if short_context is None else short_context
    longest = context_tokens + per_request

    def forward(kind: str, unit: str, reference_load: Callable[[int], int], *, long: bool = False) -> Staircase:
        points = [m for m in fitted(measurements, kind) if (m.longest_context > bound) == long]
        stairs = fit_staircase(
            points,
            unit=unit,
            load_unit=_KV_TOKENS,
            reference_load=reference_load,
            reference_longest=lambda _: longest,
            # Buckets of requests hold one number of them each.
            reference_requests=fewest_requests if kind == TARGET else None,
        )
        # Memory may hold no long contexts of so many requests, but one long context among them runs this kind.
        return complete(stairs, forward(kind, unit, reference_load)) if long else stairs

    def verification(kind: str) -> Staircase:
        points = fitted(measurements, kind)
        return fit_staircase(points, unit="requests", load_unit=_PACKED_TOKENS, reference_load=full_blocks)

    def block(kind: str) -> Staircase | None:
        points = fitted(measurements, kind)
        return fit_alike(points, draft) if draft is not None and points else None

    def fewest_requests(num_tokens: int) -> int:
        return -(-num_tokens // per_request)

    def visible(num_tokens: int) -> int:
        return fewest_requests(num_tokens) * context_tokens + num_tokens

    def visible_to_blocks(num_requests: int) -> int:
        return num_requests * (context_tokens + block_width)

    def full_blocks(num_requests: int) -> int:
        return num_requests * per_request

    has_long = short_context is not None
    draft = forward(DRAFT, "requests", visible_to_blocks) if block_width else None
    return StepCurve(
        target=forward(TARGET, "tokens", visible),
        target_long=forward(TARGET, "tokens", visible, long=True) if has_long else None,
        draft_long=forward(DRAFT, "requests", visible_to_blocks, long=True) if block_width and has_long else None,
        long_context_tokens=short_context,
        draft=draft,
        draft_one=block(DRAFT_ONE),
        draft_sampled=block(DRAFT_SAMPLED),
        draft_sampled_one=block(DRAFT_SAMPLED_ONE),
        verify_greedy=verification(VERIFY_GREEDY),
        verify_sampled=verification(VERIFY_SAMPLED),
        tokens_per_request=per_request,
        block_width=block_width,
        reference_context_tokens=context_tokens,
    )
