"""Two profiles side by side."""

from __future__ import annotations

from dataclasses import dataclass

from dspark.profiles.conditions import differences
from dspark.profiles.profile import Profile


@dataclass(frozen=True, slots=True)
class BucketChange:
    """Target steps at one batch size, with the same visible KV tokens in both profiles."""

    num_tokens: int
    first_s: float
    second_s: float
    beyond_spread: bool  # the p20-p80 bands of the two do not overlap

    @property
    def ratio(self) -> float:
        """Time of the second per time of the first."""
        return self.second_s / self.first_s


@dataclass(frozen=True, slots=True)
class Comparison:
    """What changed between two profiles."""

    changes: tuple[BucketChange, ...]
    differences: tuple[str, ...]  # in what they were measured with


def compare_profiles(first: Profile, second: Profile) -> Comparison:
    """Compare at every bucket that either has, up to the smaller of the largest ones.

    Each side is looked up by its own buckets, at the visible KV tokens of the first one's reference.
    """
    one, other = first.curve, second.curve
    limit = min(one.max_batch_tokens, other.max_batch_tokens)
    sizes = sorted({int(b) for curve in (one, other) for b in curve.target.buckets if b <= limit} | {limit})
    changes = []
    for size in sizes:
        kv_tokens = one.reference_target.reference_load[one.target.index_of(size)]
        times, bands = [], []
        for curve in (one, other):
            stairs = curve.reference_target
            index = stairs.index_of(size)
            time = float(curve.step_time_s(size, kv_tokens))
            scale = time / stairs.time_s[index]
            times.append(time)
            bands.append((scale * stairs.p20_s[index], scale * stairs.p80_s[index]))
        apart = bool(bands[0][1] < bands[1][0] or bands[1][1] < bands[0][0])
        changes.append(BucketChange(size, times[0], times[1], apart))
    return Comparison(tuple(changes), tuple(differences(first.conditions, second.conditions)))
