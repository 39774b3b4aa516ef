"""Raw samples of one point: what was run, and how long each repeat took."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from dspark.profiles.typed_json import typed

TARGET, VERIFY_GREEDY, VERIFY_SAMPLED = "target", "verify_greedy", "verify_sampled"
# Blocks of all their tokens, or of one.
DRAFT, DRAFT_ONE, DRAFT_SAMPLED, DRAFT_SAMPLED_ONE = "draft", "draft_one", "draft_sampled", "draft_sampled_one"
DRAFT_KINDS = (DRAFT, DRAFT_ONE, DRAFT_SAMPLED, DRAFT_SAMPLED_ONE)
ONE_TOKEN_KINDS, SAMPLED_KINDS = (DRAFT_ONE, DRAFT_SAMPLED_ONE), (DRAFT_SAMPLED, DRAFT_SAMPLED_ONE, VERIFY_SAMPLED)
KINDS = (TARGET, *DRAFT_KINDS, VERIFY_GREEDY, VERIFY_SAMPLED)
# What a step can take, from less than one launch to longer than anybody waits, and how much a batch can hold.
SHORTEST_S, LONGEST_S = 1e-9, 1e4
MOST_TOKENS = 2**31
_DERIVED = ("median_s", "p20_s", "p80_s")


@dataclass(frozen=True, slots=True)
class Measurement:
    """One point and its samples, in the order in which they were taken.

    Raises:
        ValueError: there is no sample, or one is no time that a step takes, or a count is too small or too large.
    """

    kind: str
    bucket: int  # that was asked for and that ran: packed tokens for the target, else requests
    num_tokens: int  # packed tokens before padding
    num_requests: int
    context_tokens: int  # of each request, before its own queries
    kv_tokens: int  # visible, summed over the requests, their own queries included
    held_out: bool  # kept from the fit, to test its predictions
    wall_s: tuple[float, ...]
    device_s: tuple[float, ...] | None = None  # by the device's own events, where it has any

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ValueError(f"a measurement is of {self.kind!r}")
        if min(self.bucket, self.num_tokens, self.num_requests) < 1 or min(self.context_tokens, self.kv_tokens) < 0:
            raise ValueError("a measurement has no tokens or requests, or a context below 0")
        if max(self.bucket, self.num_tokens, self.num_requests, self.context_tokens) > MOST_TOKENS:
            raise ValueError(f"a measurement has more than {MOST_TOKENS} tokens or requests")
        for samples in (self.wall_s, self.device_s):
            if samples is not None and not (samples and all(SHORTEST_S <= s <= LONGEST_S for s in samples)):
                raise ValueError(
                    f"a measurement has no samples, or one that is not from {SHORTEST_S:g} to {LONGEST_S:g} seconds"
                )

    @property
    def load(self) -> int:
        """What its time grows with inside a bucket: verification reads no KV."""
        return self.num_tokens if self.kind in (VERIFY_GREEDY, VERIFY_SAMPLED) else self.kv_tokens

    @property
    def longest_context(self) -> int:
        """Visible KV tokens of the longest request: tokens lie evenly on requests."""
        return self.context_tokens - (-self.num_tokens // self.num_requests)

    @property
    def samples_s(self) -> tuple[float, ...]:
        """The device's own times where there are any: rounds overlap what the host does around them."""
        return self.wall_s if self.device_s is None else self.device_s

    @property
    def median_s(self) -> float:
        """Seconds, of the clock that counts: the device's where there is one."""
        return float(np.median(self.samples_s))

    def to_dict(self) -> dict[str, Any]:
        """Ready for JSON: the samples and their median, p20 and p80."""
        p20, p80 = (float(q) for q in np.quantile(self.samples_s, (0.2, 0.8)))
        return {**asdict(self), "median_s": self.median_s, "p20_s": p20, "p80_s": p80}

    @classmethod
    def from_dict(cls, document: Any, place: str = "measurement") -> Measurement:
        """The reverse; quantiles follow from the samples again. `place` is its name in the document.

        Raises:
            ValueError: it is no measurement.
        """
        if isinstance(document, dict):
            document = {name: value for name, value in document.items() if name not in _DERIVED}
        measurement: Measurement = typed(cls, document, place)
        return measurement
