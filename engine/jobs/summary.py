"""What a run amounts to: counts over its rows, and the rates that follow from them."""

from __future__ import annotations

from array import array
from bisect import insort
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from dspark.engine.jobs.round_totals import RoundTotals
from dspark.engine.requests import SpecCounts

_QUANTILES = (0.1, 0.5, 0.9)
_MOST_ERRORS = 5
_COUNTS = ("rounds", "drafted", "verified", "observed", "accepted", "emitted")


@dataclass(frozen=True, slots=True)
class Totals:
    """Counts over some rows of an output, as README counts them under "How the numbers are counted"."""

    rows: int = 0
    stop: int = 0
    length: int = 0
    error: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    spec: SpecCounts = field(default_factory=SpecCounts)

    @classmethod
    def of(cls, record: Mapping[str, Any]) -> Totals:
        """One row: a record as the result file keeps it."""
        row = record["row"]
        counts = {**row["spec"], "observed": record["observed"], "emitted": record["emitted"]}
        counts["acceptance_histogram"] = tuple(counts["acceptance_histogram"])
        return cls(rows=1, spec=SpecCounts(**counts), **{row["finish_reason"]: 1}, **row["usage"])

    def __add__(self, other: Totals) -> Totals:
        return Totals(
            rows=self.rows + other.rows,
            stop=self.stop + other.stop,
            length=self.length + other.length,
            error=self.error + other.error,
            prompt_tokens=self.prompt_tokens + other.prompt_tokens,
            completion_tokens=self.completion_tokens + other.completion_tokens,
            spec=self.spec + other.spec,
        )

    @property
    def mean_acceptance_length(self) -> float | None:
        """Tokens a round, the bonus token included."""
        return _ratio(self.spec.emitted, self.spec.rounds)

    def to_dict(self) -> dict[str, Any]:
        """Everything, ready for strict JSON."""
        spec = self.spec
        return {
            "rows": self.rows,
            "finish_reasons": {"stop": self.stop, "length": self.length, "error": self.error},
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.completion_tokens,
            "spec": {
                "rounds": spec.rounds,
                "drafted": spec.drafted,
                "verified": spec.verified,
                "observed": spec.observed,
                "accepted": spec.accepted,
                "emitted": spec.emitted,
                "mean_acceptance_length": self.mean_acceptance_length,
                "draft_acceptance_rate": _ratio(spec.accepted, spec.verified),
                "verified_per_round": _ratio(spec.verified, spec.rounds),
                "wasted_verification": _ratio(spec.verified - spec.accepted, spec.verified),
                "acceptance_histogram": list(spec.acceptance_histogram),
            },
        }


@dataclass(slots=True)
class DecodeSummary:
    """Totals over the whole output, earlier runs' rows included, and over this run's rows; times are of this run.

    `unused_fields` is what the input says of them, `policy` what verification was scheduled by. `sees_rounds` off says
    that the engine runs elsewhere, and what its rounds were is not known.
    """

    num_rows: int
    unused_fields: Mapping[str, Any] = field(default_factory=dict)
    policy: str | None = None
    sees_rounds: bool = True
    # Totals are replaced and never changed, so that another thread may look at them at any time.
    whole_file: Totals = field(default_factory=Totals)
    this_run: Totals = field(default_factory=Totals)
    decode_s: float = 0.0
    engine_rounds: RoundTotals = field(default_factory=RoundTotals)
    prefill_tokens: int = 0  # of this run
    preemptions: int = 0
    first_errors: list[tuple[int, str]] = field(default_factory=list)  # (row index, error), in input order
    row_tokens: array[float] = field(default_factory=lambda: array("d"))
    row_acceptance_length: array[float] = field(default_factory=lambda: array("d"))
    row_counts: dict[str, array[int]] = field(default_factory=lambda: {name: array("q") for name in _COUNTS})

    def add(self, record: Mapping[str, Any], *, resumed: bool) -> None:
        """Count one row in: a record as the result file keeps it."""
        one = Totals.of(record)
        self.whole_file += one
        if not resumed:
            self.this_run += one
        if one.error:
            insort(self.first_errors, (record["row"]["index"], record["row"]["error"]))
            del self.first_errors[_MOST_ERRORS:]
            return
        self.row_tokens.append(one.completion_tokens)
        for name, values in self.row_counts.items():
            values.append(getattr(one.spec, name))
        if one.mean_acceptance_length is not None:
            self.row_acceptance_length.append(one.mean_acceptance_length)

    @property
    def resumed_rows(self) -> int:
        """Rows that earlier runs had done."""
        return self.whole_file.rows - self.this_run.rows

    @property
    def tokens_per_s(self) -> float | None:
        """Speed of this run over its own rows."""
        return _ratio(self.this_run.completion_tokens, self.decode_s) or None

    def to_dict(self) -> dict[str, Any]:
        """Everything, ready for strict JSON: the whole file's totals, and this run's under `this_run`."""
        return {
            **self.whole_file.to_dict(),
            "resumed_rows": self.resumed_rows,
            "per_request": {
                "completion_tokens": _quantiles(self.row_tokens),
                **{name: _quantiles(values) for name, values in self.row_counts.items()},
                "mean_acceptance_length": _quantiles(self.row_acceptance_length),
            },
            "first_errors": [error for _, error in self.first_errors],
            "unused_fields": dict(self.unused_fields),
            "this_run": {
                **self.this_run.to_dict(),
                "decode_s": self.decode_s,
                "tokens_per_s": self.tokens_per_s,
                "policy": self.policy,
                "engine_rounds": self.engine_rounds.to_dict() if self.sees_rounds else None,
                "prefill_tokens": self.prefill_tokens if self.sees_rounds else None,
                "preemptions": self.preemptions if self.sees_rounds else None,
            },
        }


def _ratio(part: float, whole: float) -> float | None:
    return part / whole if whole else None


def _quantiles(values: Sequence[float]) -> dict[str, float | None]:
    """Nearest-rank quantiles."""
    ordered = sorted(values)
    return {f"p{round(q * 100)}": ordered[round(q * (len(ordered) - 1))] if ordered else None for q in _QUANTILES}
