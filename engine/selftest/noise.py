"""How exactly the target's logits are known: the same text gives others in batches of another shape."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dspark.engine.selftest.plain import PlainForward

# Tokens that could be chosen; what the far tail does is of no account.
_LIKELIEST = 8
# A sample of texts does not hold the largest difference there is, and two logits that are compared both have one.
_MARGIN = 4.0


def logit_noise(plain: PlainForward, texts: Sequence[Sequence[int]], *, step: int) -> float:
    """Largest difference between logits of likely tokens computed at once, one by one and `step` by `step`."""
    largest = 0.0
    for text in texts:
        whole = plain.logits(text)  # [n, V]
        likely = np.argsort(-whole, axis=1)[:, :_LIKELIEST]
        for size in {1, step}:
            other = plain.logits(text, step=size)
            difference = np.take_along_axis(whole, likely, axis=1) - np.take_along_axis(other, likely, axis=1)
            largest = max(largest, float(np.abs(difference).max()))
    return largest


def near_tie_gap(noise: float) -> float:
    """Two logits no further apart than this may change places with the batch's shape."""
    return _MARGIN * noise
