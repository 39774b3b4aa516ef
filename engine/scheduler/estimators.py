"""What this run's own events say about predicted times and predicted acceptance."""

from __future__ import annotations

import math

import numpy as np

from dspark.engine.scheduler.arrays import FloatArray

_LARGEST_RATIO = 4.0  # of measured to predicted time that is believed
_FIRST_SPREAD = 0.05  # of log ratios, before any was seen
_LEAST_SPREAD = 0.01
_OUTLIER = 3.0  # in spreads: what deviates more counts as this much
_PRIOR_SAMPLES = 4.0  # that the prediction is worth against the first measured ones
_GLOBAL_WINDOW, _BUCKET_WINDOW = 64.0, 32.0  # samples that an estimate remembers
_TOKEN_WINDOW = 2048.0  # expected accepted tokens that an acceptance ratio remembers
_PRIOR_TOKENS = 64.0  # that the calibration is worth against the first measured ones
_LEAST_ACCEPTANCE, _LARGEST_ACCEPTANCE = 0.5, 1.5
_HALF_LIFE = 4096.0  # samples of other buckets after which half of a bucket's own are forgotten


class RatioEstimator:
    """measured / predicted time per bucket, each shrunk to the ratio over all buckets while it has few samples.

    Ratios are averaged as logarithms, so that too slow and too fast count alike and no corrected time can be zero or
    negative. A deviation counts for at most a few times the usual one: a stall of any length moves an estimate as
    little as a slightly slow step does, while a lasting change widens what is usual and is soon followed.
    """

    def __init__(self, num_buckets: int) -> None:
        self._overall = _RobustMean(_GLOBAL_WINDOW)
        self._of_bucket = [_RobustMean(_BUCKET_WINDOW) for _ in range(num_buckets)]
        self._last_seen = np.zeros(num_buckets)
        self._samples = np.zeros(num_buckets)
        self._level = np.zeros(num_buckets)
        self._clock = 0
        self._ratios: FloatArray | None = np.ones(num_buckets)  # None: to be computed anew

    def observe(self, bucket: int, *, predicted_s: float, measured_s: float) -> None:
        """Take one step of bucket index `bucket` into account; times that are no positive numbers are left out."""
        if not (0 < measured_s < math.inf and 0 < predicted_s < math.inf):
            return
        bound = math.log(_LARGEST_RATIO)
        sample = min(max(math.log(measured_s / predicted_s), -bound), bound)
        self._overall.add(sample)
        mean = self._of_bucket[bucket]
        if self._samples[bucket] == 0:
            mean.level = self._overall.level
        mean.add(sample)
        self._samples[bucket] = self.samples()[bucket] + 1
        self._level[bucket] = mean.level
        self._clock += 1
        self._last_seen[bucket] = self._clock
        self._ratios = None

    def samples(self) -> FloatArray:
        """[B]: what each bucket's own samples are still worth, in samples."""
        age = self._clock - self._last_seen
        return np.minimum(self._samples, _BUCKET_WINDOW) * np.exp2(-age / _HALF_LIFE)

    def ratios(self) -> FloatArray:
        """[B], between 1/4 and 4."""
        if self._ratios is None:
            samples = self.samples()
            weight = samples / (samples + _PRIOR_SAMPLES)
            self._ratios = np.exp(weight * self._level + (1 - weight) * self._overall.level)
        return self._ratios


class AcceptanceRatio:
    """Accepted / expected tokens of recent rounds: calibration is never perfect, and text differs from what it saw."""

    def __init__(self) -> None:
        self._expected = self._accepted = _PRIOR_TOKENS

    def observe(self, *, expected: float, accepted: int) -> None:
        """Take in a round that was expected to accept `expected` drafted tokens."""
        kept = max(1 - expected / _TOKEN_WINDOW, 0.0)
        self._expected = kept * self._expected + expected
        self._accepted = kept * self._accepted + accepted

    @property
    def ratio(self) -> float:
        """Between 1/2 and 3/2."""
        return min(max(self._accepted / self._expected, _LEAST_ACCEPTANCE), _LARGEST_ACCEPTANCE)


class _RobustMean:
    """A running mean of which no sample can move more than its usual share."""

    __slots__ = ("_count", "_spread", "_window", "level")

    def __init__(self, window: float) -> None:
        self.level = 0.0
        self._window = window
        self._spread = _FIRST_SPREAD
        self._count = _PRIOR_SAMPLES

    def add(self, sample: float) -> None:
        self._count = min(self._count + 1, self._window)
        bound = _OUTLIER * self._spread
        deviation = min(max(sample - self.level, -bound), bound)
        self.level += deviation / self._count
        self._spread = max(self._spread + (abs(deviation) - self._spread) / self._count, _LEAST_SPREAD)
