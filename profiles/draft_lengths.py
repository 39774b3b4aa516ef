"""How many tokens to draft for every request when there are R of them: one length for all, from the mean survival."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dspark.profiles.curve import SCOPES, StepCurve
from dspark.profiles.errors import ProfileError


@dataclass(frozen=True, slots=True)
class LengthRange:
    """Requests from `first` to `last` draft `length` tokens each."""

    first: int
    last: int
    length: int


def best_lengths(
    curve: StepCurve, mean_survival: Sequence[float], *, scope: str = "round", sampled: bool = False
) -> list[LengthRange]:
    """For every number of requests R that was profiled, the K of the largest Θ = R (1 + a_1 + ... + a_K) / time.

    mean_survival [G]: chance that the first k drafted tokens are all accepted. The time is that of R requests with
    1 + K packed tokens each behind the reference context, who draft K tokens. The smallest of equals wins.

    Raises:
        ProfileError: the curve has no drafter, or its blocks have another length.
    """
    if curve.draft is None:
        raise ProfileError(
            "the profile was measured without a drafter", "Run `dspark profile` with the drafter that will run."
        )
    if len(mean_survival) != curve.gamma:
        raise ProfileError(
            f"the profile is for blocks of {curve.gamma} drafted tokens, the survival for {len(mean_survival)}",
            "Profile and calibrate the same drafter.",
        )
    ranges: list[LengthRange] = []
    for requests in range(1, curve.max_requests + 1):
        length = _best_length(curve, mean_survival, requests, scope=scope, sampled=sampled)
        if ranges and ranges[-1].length == length:
            ranges[-1] = LengthRange(ranges[-1].first, requests, length)
        else:
            ranges.append(LengthRange(requests, requests, length))
    return ranges


def _best_length(curve: StepCurve, survival: Sequence[float], requests: int, *, scope: str, sampled: bool) -> int:
    assert scope in SCOPES, scope
    # A request takes at most tokens_per_request, and the batch at most what was profiled.
    most = min(curve.gamma, curve.max_batch_tokens // requests - 1)
    lengths = np.arange(most + 1)
    tokens = requests * (1 + lengths)
    kv_tokens = requests * curve.reference_context_tokens + tokens
    emitted = requests * (1 + np.concatenate([[0.0], np.cumsum(survival)])[: most + 1])
    if scope == "target":
        time_s = curve.step_time_s(tokens, kv_tokens, num_requests=requests)
    else:
        step_s = curve.round_time_s(tokens, num_requests=requests, kv_tokens=kv_tokens, sampled=sampled, drafts=False)
        seen = requests * (curve.reference_context_tokens + curve.block_width)
        draft_s = [float(curve.draft_time_s(requests, seen, steps=k, sampled=sampled)) for k in range(1, most + 1)]
        time_s = step_s + np.array([0.0, *draft_s])
    # argmax takes the first of equals.
    return int(np.argmax(emitted / time_s))
