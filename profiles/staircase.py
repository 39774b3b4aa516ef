"""A staircase: what a step costs in each of the buckets that a batch is padded to."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dspark.profiles.errors import ProfileError
from dspark.profiles.measurement import LONGEST_S, MOST_TOKENS, SHORTEST_S
from dspark.profiles.typed_json import member

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]

_TIMES = f"from {SHORTEST_S:g} to {LONGEST_S:g} seconds"
_PROFILE_LARGER = "Run `dspark profile` with a larger --concurrency or --max-batch-tokens."


@dataclass(frozen=True, slots=True, eq=False)
class Staircase:
    """Time per bucket, and what each unit of load adds to it. B buckets, read-only arrays.

    A count is looked up by the bucket that will really run: the smallest one that holds it (ceiling). The load is what
    the time grows with inside a bucket: visible KV tokens for a forward, packed tokens for verification, in both cases
    summed over the batch's requests. A forward also waits for its longest request, which few programs read alone, so
    that request's visible tokens count apart; and so do its requests, each of which gives attention one more tile to
    work on, however short its context. Where buckets count requests, these have no slope inside them.

    Raises:
        ValueError: the arrays do not fit together, or hold what no measurement gives.
    """

    unit: str  # what buckets count: "tokens" or "requests"
    load_unit: str  # what a load counts: "visible KV tokens" or "packed tokens"
    buckets: IntArray  # [B], increasing
    time_s: FloatArray  # [B], under `reference_load`
    p20_s: FloatArray  # [B]
    p80_s: FloatArray  # [B]
    reference_load: IntArray  # [B], that `time_s` is for
    load_s: FloatArray  # [B], seconds per unit of load more
    reference_longest: IntArray  # [B], visible tokens of the longest request that `time_s` is for
    longest_s: FloatArray  # [B], seconds per visible token more of the longest request
    reference_requests: IntArray  # [B], that `time_s` is for
    request_s: FloatArray  # [B], seconds per request more among the bucket's tokens

    def __post_init__(self) -> None:
        for name in _WHOLE_NUMBERS:
            _freeze(self, name, np.int64)
        for name in _SECONDS:
            _freeze(self, name, np.float64)
        buckets = self.buckets
        if not (buckets.size and buckets[0] >= 1 and (np.diff(buckets) > 0).all()):
            raise ValueError("buckets are not increasing whole numbers from 1 on")
        slopes = (self.load_s, self.longest_s, self.request_s)
        references = (self.reference_load, self.reference_longest, self.reference_requests)
        numbers = (self.time_s, self.p20_s, self.p80_s, *slopes, *references)
        if any(values.shape != buckets.shape for values in numbers):
            raise ValueError("a staircase needs one value a bucket")
        if not all(np.isfinite(values).all() for values in numbers):
            raise ValueError("a staircase has a value that is not a number")
        if any((values < 0).any() for values in (*slopes, *references)):
            raise ValueError("more load cannot make a step faster")
        self._check_ranges()
        if (self.time_s <= sum(slope * at for slope, at in zip(slopes, references, strict=True))).any():
            raise ValueError("a step without any load takes no time")

    def _check_ranges(self) -> None:
        """Refuse numbers that no device and no batch gives, by their place."""
        checks = (
            ("buckets", self.buckets <= MOST_TOKENS, f"at most {MOST_TOKENS}"),
            ("time_s", (self.time_s >= SHORTEST_S) & (self.time_s <= LONGEST_S), _TIMES),
            ("p20_s", (self.p20_s >= 0) & (self.p20_s <= self.time_s), "from 0 to the bucket's time_s"),
            (
                "p80_s",
                (self.p80_s >= self.time_s) & (self.p80_s <= LONGEST_S),
                "from the bucket's time_s to 1e4",
            ),
            ("load_s", self.load_s <= LONGEST_S, "at most 1e4 seconds"),
            ("longest_s", self.longest_s <= LONGEST_S, "at most 1e4 seconds"),
            ("request_s", self.request_s <= LONGEST_S, "at most 1e4 seconds"),
        )
        for name, right, wanted in checks:
            if not right.all():
                index = int(np.argmin(right))
                raise ValueError(f"{name}[{index}] is {getattr(self, name)[index]:g}, not {wanted}")

    @property
    def largest(self) -> int:
        """The largest count that can be looked up."""
        return int(self.buckets[-1])

    def index_of(self, counts: ArrayLike) -> IntArray:
        """Index of the bucket that holds each of `counts`, of any shape.

        Raises:
            ProfileError: a count is under 1 or beyond the largest bucket.
        """
        wanted = np.asarray(counts, dtype=np.int64)
        if wanted.size and wanted.max() > self.largest:
            raise ProfileError(
                f"a batch of {wanted.max()} {self.unit} is beyond the largest profiled bucket of {self.largest}",
                _PROFILE_LARGER,
            )
        if wanted.size and wanted.min() < 1:
            raise ProfileError(f"a batch of {wanted.min()} {self.unit} has no bucket: the smallest batch is 1")
        return np.searchsorted(self.buckets, wanted, side="left")

    def time_at(
        self,
        counts: ArrayLike,
        load: ArrayLike | None = None,
        *,
        longest: ArrayLike | None = None,
        requests: ArrayLike | None = None,
    ) -> FloatArray:
        """Seconds of steps over `counts`; `load`, `longest`, `requests`: None = the reference of each bucket."""
        return self._time_of(self.index_of(counts), load, longest, requests)

    def line_at(
        self, counts: ArrayLike, *, longest: ArrayLike | None = None, requests: ArrayLike | None = None
    ) -> tuple[FloatArray, FloatArray]:
        """The same without any load, and seconds that each unit of load adds."""
        index = self.index_of(counts)
        return self._time_of(index, 0, longest, requests), self.load_s[index]

    def _time_of(
        self, index: IntArray, load: ArrayLike | None, longest: ArrayLike | None, requests: ArrayLike | None
    ) -> FloatArray:
        time_s = self.time_s[index]
        for size, slope_s, reference in (
            (load, self.load_s, self.reference_load),
            (longest, self.longest_s, self.reference_longest),
            (requests, self.request_s, self.reference_requests),
        ):
            if size is not None:
                time_s = time_s + slope_s[index] * (np.asarray(size, dtype=np.float64) - reference[index])
        return time_s

    def to_dict(self) -> dict[str, Any]:
        """Ready for JSON."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: value if isinstance(value, str) else value.tolist() for name, value in values.items()}

    @classmethod
    def from_dict(cls, document: Any, place: str = "staircase") -> Staircase:
        """The reverse; `place` is its name in the document.

        Raises:
            ValueError: it is no staircase.
        """
        values = {field.name: member(document, field.name, _KINDS[field.name], place) for field in fields(cls)}
        try:
            return cls(**values)
        except (ValueError, OverflowError) as error:
            raise ValueError(f"`{place}`: {error}") from None


_WHOLE_NUMBERS = ("buckets", "reference_load", "reference_longest", "reference_requests")
_SECONDS = ("time_s", "p20_s", "p80_s", "load_s", "longest_s", "request_s")
_KINDS: dict[str, Any] = dict.fromkeys(("unit", "load_unit"), str)
_KINDS |= dict.fromkeys(_WHOLE_NUMBERS, tuple[int, ...])
_KINDS |= dict.fromkeys(_SECONDS, tuple[float, ...])


def _freeze(staircase: Staircase, name: str, dtype: type[np.int64] | type[np.float64]) -> None:
    """Make a field a read-only array of `dtype`; text, booleans and fractions in place of whole numbers are refused."""
    given = np.asarray(getattr(staircase, name))
    if given.ndim != 1 or given.dtype.kind not in ("iuf" if dtype is np.float64 else "iu"):
        raise ValueError(f"{name} is no list of {'numbers' if dtype is np.float64 else 'whole numbers'}")
    values = given.astype(dtype)
    values.flags.writeable = False
    object.__setattr__(staircase, name, values)
