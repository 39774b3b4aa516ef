"""What a run amounts to: counts over its rows, and the rates that follow from them."""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

_QUANTILES = (0.1, 0.5, 0.9)


@dataclass(slots=True)
class DecodeSummary:
    """Totals over the rows of one output, earlier runs' rows included; times and speeds are of this run alone.

    Counted as README says under "How the numbers are counted": `emitted` is completion tokens less those that prefill
    gave.
    """

    num_rows: int
    done: int = 0
    resumed: int = 0
    finish_reasons: dict[str, int] = field(default_factory=lambda: {"stop": 0, "length": 0, "error": 0})
    prompt_tokens: int = 0
    completion_tokens: int = 0
    rounds: int = 0
    drafted: int = 0
    verified: int = 0
    observed: int = 0
    accepted: int = 0
    emitted: int = 0
    acceptance_histogram: list[int] = field(default_factory=list)
    new_tokens: int = 0
    decode_s: float = 0.0
    row_tokens: array[float] = field(default_factory=lambda: array("d"))
    row_acceptance_length: array[float] = field(default_factory=lambda: array("d"))

    def add(self, record: Mapping[str, Any], *, resumed: bool) -> None:
        """Count one row in: a record as the result file keeps it."""
        row = record["row"]
        spec = row["spec"]
        self.done += 1
        self.resumed += resumed
        self.finish_reasons[row["finish_reason"]] += 1
        self.prompt_tokens += row["usage"]["prompt_tokens"]
        tokens = row["usage"]["completion_tokens"]
        self.completion_tokens += tokens
        self.new_tokens += 0 if resumed else tokens
        self.rounds += spec["rounds"]
        self.drafted += spec["drafted"]
        self.verified += spec["verified"]
        self.accepted += spec["accepted"]
        self.observed += record["observed"]
        self.emitted += record["emitted"]
        histogram = spec["acceptance_histogram"]
        self.acceptance_histogram.extend([0] * (len(histogram) - len(self.acceptance_histogram)))
        for accepted, rounds in enumerate(histogram):
            self.acceptance_histogram[accepted] += rounds
        if row["finish_reason"] != "error":
            self.row_tokens.append(tokens)
            if spec["rounds"]:
                self.row_acceptance_length.append(record["emitted"] / spec["rounds"])

    @property
    def num_errors(self) -> int:
        return self.finish_reasons["error"]

    @property
    def mean_acceptance_length(self) -> float | None:
        return self.emitted / self.rounds if self.rounds else None

    @property
    def draft_acceptance_rate(self) -> float | None:
        return self.accepted / self.verified if self.verified else None

    @property
    def tokens_per_s(self) -> float | None:
        return self.new_tokens / self.decode_s if self.decode_s > 0 and self.new_tokens else None

    def to_dict(self) -> dict[str, Any]:
        """Everything, ready for strict JSON."""
        return {
            "rows": self.num_rows,
            "resumed_rows": self.resumed,
            "finish_reasons": dict(self.finish_reasons),
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.completion_tokens,
            "decode_s": self.decode_s,
            "tokens_per_s": self.tokens_per_s,
            "spec": {
                "rounds": self.rounds,
                "drafted": self.drafted,
                "verified": self.verified,
                "observed": self.observed,
                "accepted": self.accepted,
                "emitted": self.emitted,
                "mean_acceptance_length": self.mean_acceptance_length,
                "draft_acceptance_rate": self.draft_acceptance_rate,
                "acceptance_histogram": list(self.acceptance_histogram),
            },
            "per_request": {
                "completion_tokens": _quantiles(self.row_tokens),
                "mean_acceptance_length": _quantiles(self.row_acceptance_length),
            },
        }


def _quantiles(values: Sequence[float]) -> dict[str, float | None]:
    """Nearest-rank quantiles."""
    ordered = sorted(values)
    return {f"p{round(q * 100)}": ordered[round(q * (len(ordered) - 1))] if ordered else None for q in _QUANTILES}
