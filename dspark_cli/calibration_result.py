"""A calibration as a person and a program read it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dspark.calibration import Calibration, Position, PredictionMetrics
    from dspark.cli.output import Sink


@dataclass(frozen=True, slots=True)
class Source:
    """The files that hold the rounds, and the decoded rows, if any, that gave none."""

    files: tuple[Path, ...]
    num_rows: int = 0
    num_errors: int = 0
    first_errors: tuple[str, ...] = ()


def render(made: Calibration, source: Source, sink: Sink, *, calibration: Path) -> None:
    """A line a position in two tables, the verdict, the temperatures ready to paste, and what to know about them."""
    from dspark.calibration.export import temperature_tuple

    sink.document(
        {
            "command": "calibrate",
            "calibration": str(calibration),
            "traces": [str(path) for path in source.files],
            "temperatures": list(made.temperatures),
            "verdict": made.verdict,
            "warnings": list(made.warnings),
            "rounds": {"fitted": made.fitted_on.rounds, "held_out": made.held_out.rounds},
            "positions": [_position_document(position) for position in made.positions],
            "error_rows": source.num_errors,
            "first_errors": list(source.first_errors),
        }
    )
    measured = f"{made.held_out.rounds:,} held-out rounds" if made.held_out.rounds else "the fitted rounds"
    sink.grid(
        f"survival on {measured}, before → after calibration",
        ("k", "rounds", "T", "ECE", "perfect: mean, 95 %"),
        [_calibration_row(position) for position in made.positions],
    )
    if not all(position.fit.fitted for position in made.positions):
        sink.note("T is 1 (left) where too little was observed to fit one.")
    sink.grid(
        "the same, and acceptance of the rounds that reached k",
        ("k", "accepted", "NLL", "Brier", "AUC"),
        [_score_row(position) for position in made.positions],
    )
    sink.table(
        "calibrate",
        [
            ("verdict", made.verdict),
            ("fitted on", f"{made.fitted_on.rounds:,} rounds of {made.fitted_on.requests:,} requests, {made.method}"),
            ("calibration", str(calibration)),
            ("traces", ", ".join(str(path) for path in source.files)),
        ],
    )
    # On a line of its own, where no table folds it.
    sink.note(f"temperatures = {temperature_tuple(made.temperatures)}")
    for warning in made.warnings:
        sink.note(warning)
    if source.num_errors:
        sink.alert(f"{source.num_errors:,} of {source.num_rows:,} rows could not be decoded", source.first_errors)


def _calibration_row(position: Position) -> tuple[str, ...]:
    metrics = position.metrics
    null = metrics.after.ece_null
    return (
        str(metrics.position),
        f"{metrics.rounds:,}",
        f"{position.fit.temperature:.3f}" if position.fit.fitted else "1 (left)",
        _change(metrics.before.ece, metrics.after.ece, digits=4),
        # Of few rounds the 95 % may lie below the mean, which tells nobody anything.
        "-" if null is None or null.high < null.mean else f"{null.mean:.4f}, {null.high:.4f}",
    )


def _score_row(position: Position) -> tuple[str, ...]:
    before, after = position.metrics.before, position.metrics.after
    return (
        str(position.metrics.position),
        _proportion(position),
        _change(before.nll, after.nll, digits=3),
        _change(before.brier, after.brier, digits=3),
        _change(before.auc, after.auc, digits=3),
    )


def _proportion(position: Position) -> str:
    share = position.metrics.accepted
    if share.rate is None or share.low is None or share.high is None:
        return "-"
    return f"{share.rate:.3f} ({share.low:.3f}-{share.high:.3f})"


def _change(before: float | None, after: float | None, *, digits: int) -> str:
    return "-" if before is None or after is None else f"{before:.{digits}f} → {after:.{digits}f}"


def _position_document(position: Position) -> dict[str, Any]:
    metrics = position.metrics
    accepted = metrics.accepted
    return {
        "position": metrics.position,
        "temperature": position.fit.temperature,
        "fitted": position.fit.fitted,
        "rounds": metrics.rounds,
        "accepted": {"rate": accepted.rate, "low": accepted.low, "high": accepted.high, "reached": accepted.trials},
        "before": _metrics_document(metrics.before),
        "after": _metrics_document(metrics.after),
    }


def _metrics_document(metrics: PredictionMetrics) -> dict[str, float | None]:
    null = metrics.ece_null
    return {
        "ece": metrics.ece,
        "ece_null_mean": None if null is None else null.mean,
        "ece_null_high": None if null is None else null.high,
        "nll": metrics.nll,
        "brier": metrics.brier,
        "auc": metrics.auc,
    }
