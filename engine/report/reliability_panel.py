"""Reliability diagrams of every position, before and after calibration."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from dspark.calibration import Calibration, PredictionMetrics, Traces, measure
from dspark.calibration.plots import AFTER, BEFORE, draw_counts, draw_reliability
from dspark.engine.report import words
from dspark.engine.report.panel import Panel, Table, legend, shown

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TITLE = "Reliability of the predicted survival"
# A diagram for more positions could not be read.
_MOST_DRAWN = 16
_COLUMNS = 4

# Of one position: rounds with a known outcome, metrics before, and after if there is a calibration.
Diagram = tuple[int, PredictionMetrics, PredictionMetrics | None]


def calibrated_panel(calibration: Calibration) -> Panel:
    """From what `calibrate` measured on the rounds it held out."""
    metrics = [position.metrics for position in calibration.positions]
    held_out = calibration.held_out.rounds > 0
    which = f"{calibration.held_out.rounds:,} held-out" if held_out else f"{calibration.fitted_on.rounds:,} fitted"
    fitted = ", ".join(f"{temperature:.3g}" for temperature in calibration.temperatures)
    return _panel(
        [(m.rounds, m.before, m.after) for m in metrics],
        sentence=calibration.verdict,
        method=(
            f"On {which} rounds. Method {calibration.method}, temperatures ({fitted}). Points are bins of equal width "
            "with 95 % Wilson intervals; below, how many rounds each bin holds."
        ),
        numbers={"temperatures": calibration.temperatures, "held_out": held_out},
    )


def uncalibrated_panel(traces: Traces, *, rng: np.random.Generator) -> Panel:
    """From traces that nobody has calibrated on yet."""
    before = [m.before for m in measure(traces, (1.0,) * traces.gamma, rng=rng)]
    rounds = [int(traces.survival_known_at(k + 1)[0].sum()) for k in range(traces.gamma)]
    return _panel(
        [(n, metrics, None) for n, metrics in zip(rounds, before, strict=True)],
        sentence=words.about_raw_reliability(before),
        method=(
            f"On all {len(traces):,} rounds; nothing is calibrated yet. Points are bins of equal width with 95 % "
            "Wilson intervals; below, how many rounds each bin holds."
        ),
        numbers={"temperatures": None, "held_out": False},
    )


def _panel(diagrams: Sequence[Diagram], *, sentence: str, method: str, numbers: dict[str, Any]) -> Panel:
    drawn = list(diagrams[:_MOST_DRAWN])
    rows = -(-len(drawn) // _COLUMNS)
    if len(drawn) < len(diagrams):
        method += f" Positions past {_MOST_DRAWN} are in the table and the summary only."
    positions = [
        {"position": k, "rounds": rounds, "before": before, "after": after}
        for k, (rounds, before, after) in enumerate(diagrams, start=1)
    ]
    return Panel(
        name="reliability",
        title=TITLE,
        sentence=sentence,
        alt=(
            f"{words.plural(len(drawn), 'reliability diagram')}, one a draft position: share of rounds accepted up to "
            "the position against the predicted survival, with the diagonal, and a histogram of the predictions below."
        ),
        method=method,
        numbers={**numbers, "positions": positions},
        table=_table(diagrams),
        draw=lambda figure: _draw(figure, drawn, rows),
        size=(9.0, 0.5 + 2.9 * rows),
    )


def _draw(figure: Figure, diagrams: Sequence[Diagram], rows: int) -> None:
    grid = figure.subplots(2 * rows, _COLUMNS, squeeze=False, sharex=True, gridspec_kw={"height_ratios": (3, 1) * rows})
    for place in range(rows * _COLUMNS):
        row, column = divmod(place, _COLUMNS)
        diagram, counts = grid[2 * row][column], grid[2 * row + 1][column]
        if place >= len(diagrams):
            diagram.set_axis_off()
            counts.set_axis_off()
            continue
        _, before, after = diagrams[place]
        for metrics, label, color, marker, shift in (
            (before, "before", BEFORE, "^", 0.0),
            (after, "after", AFTER, "o", 0.008),
        ):
            if metrics is None or metrics.reliability is None:
                continue
            draw_reliability(diagram, metrics.reliability, label=label, color=color, marker=marker, shift=shift)
            draw_counts(counts, metrics.reliability, label=label, color=color, filled=label == "after")
        diagram.set_title(f"position {place + 1}", fontsize="medium")
        diagram.set(xlabel="", ylabel=diagram.get_ylabel() if column == 0 else "")
        lowest = place + _COLUMNS >= len(diagrams)
        counts.set(ylabel="rounds" if column == 0 else "", xlabel="predicted survival" if lowest else "")
        # Shared axes label the last row only, which may have fewer diagrams.
        counts.tick_params(labelbottom=lowest)
        counts.ticklabel_format(axis="y", style="sci", scilimits=(0, 4))
    legend(figure, [grid[0][0]])


def _table(diagrams: Sequence[Diagram]) -> Table:
    headers = ["position", "rounds", "ECE before", "95 % of the null"]
    after_known = any(after is not None for _, _, after in diagrams)
    if after_known:
        headers += ["ECE after", "95 % of the null", "AUC before", "AUC after"]
    else:
        headers += ["AUC"]
    rows = []
    for k, (rounds, before, after) in enumerate(diagrams, start=1):
        cells = [str(k), f"{rounds:,}", shown(before.ece, ".4f"), _null(before)]
        if after is not None:
            cells += [shown(after.ece, ".4f"), _null(after), shown(before.auc, ".3f"), shown(after.auc, ".3f")]
        else:
            cells += [shown(before.auc, ".3f")]
        rows.append(tuple(cells))
    return Table(tuple(headers), tuple(rows))


def _null(metrics: PredictionMetrics) -> str:
    return shown(None if metrics.ece_null is None else metrics.ece_null.high, ".4f")
