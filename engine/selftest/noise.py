"""How exactly the target's logits are known: the same text gives others in batches of another shape."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dspark.engine.selftest.plain import PlainForward

# Tokens that could be chosen; what the tail does is of no account.
_LIKELIEST = 4
# A few texts do not hold the largest difference there is.
_MARGIN = 2.0


def logit_noise(
    plain: PlainForward, prompts: Sequence[Sequence[int]], texts: Sequence[Sequence[int]], *, step: int
) -> float:
    """How far the likeliest tokens' logits move against each other with the batch's shape, at most.

    Each token of `texts` behind its prompt is computed with its whole text, by itself, and with `step` others. What
    moves all logits of a token alike moves no choice and does not count.
    """
    largest = 0.0
    for prompt, text in zip(prompts, texts, strict=True):
        tokens, first = [*prompt, *text], len(prompt) - 1
        whole = plain.logits(tokens)[first:]  # [n, V]
        likely = np.argsort(-whole, axis=1)[:, :_LIKELIEST]
        for size in {1, step}:
            moved = plain.logits(tokens, step=size)[first:] - whole
            moved = np.take_along_axis(moved, likely, axis=1)  # [n, likeliest]
            largest = max(largest, float((moved.max(axis=1) - moved.min(axis=1)).max()))
    return largest


def near_tie_gap(noise: float) -> float:
    """Two logits no further apart than this may change places with the batch's shape."""
    return _MARGIN * noise
