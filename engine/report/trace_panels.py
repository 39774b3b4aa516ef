"""Figures that rest on recorded rounds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from dspark.calibration import Calibration, Traces
from dspark.calibration.plots import draw_acceptance
from dspark.engine.report import words
from dspark.engine.report.acceptance import AcceptanceLengths, dataset_acceptance
from dspark.engine.report.audit import FEWEST_OUTCOMES, SignalScores, audit
from dspark.engine.report.drift import Drift, drift
from dspark.engine.report.looks import MOST_SERIES, series_look
from dspark.engine.report.panel import MissingPanel, Panel, Table, legend, shown
from dspark.engine.report.plots import draw_lengths, draw_scores, draw_sweep_rate, draw_sweep_tokens
from dspark.engine.report.rounds import Sample
from dspark.engine.report.sweep import ThresholdSweep, threshold_sweeps

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def acceptance_panel(traces: Traces) -> Panel:
    """Conditional acceptance by position and data set."""
    datasets = dataset_acceptance(traces)
    drawn = datasets[:MOST_SERIES]
    left_out = len(datasets) - len(drawn)
    method = (
        "Of the rounds that reached a position, the share that accepted it; bars are 95 % Wilson intervals. Rounds of "
        "one request are not independent, so the intervals are somewhat narrow."
    )
    if left_out:
        method += f" The {words.plural(left_out, 'smallest data set')} are in the table and the summary only."

    def draw(figure: Figure) -> None:
        axes = figure.subplots()
        for i, entry in enumerate(drawn):
            look = series_look(i)
            draw_acceptance(
                axes,
                entry.positions,
                label=entry.dataset,
                color=look.color,
                marker=look.marker,
                linestyle=look.linestyle,
            )
        legend(figure, [axes])

    return Panel(
        name="acceptance",
        title="Conditional acceptance by position",
        sentence=words.about_acceptance(datasets),
        alt=f"Line chart of acceptance against draft position, {words.plural(len(drawn), 'line')}.",
        method=method,
        numbers={"datasets": datasets},
        table=_by_position(
            traces.gamma, [(d.dataset, [_share(p.rate, p.trials) for p in d.positions]) for d in datasets]
        ),
        draw=draw,
    )


def lengths_panel(lengths: Sequence[AcceptanceLengths]) -> Panel:
    """Acceptance lengths, of traces, of a decoded file, or of both."""
    longest = max(len(entry.counts) for entry in lengths)
    rows = [
        (str(k), *(f"{entry.counts[k]:,}" if k < len(entry.counts) else "–" for entry in lengths))
        for k in range(longest)
    ]
    return Panel(
        name="acceptance_lengths",
        title="Acceptance lengths",
        sentence=words.about_lengths(lengths),
        alt="Bar chart of the share of rounds that accepted 0, 1, 2 and so on drafted tokens.",
        method="Recorded rounds count if the whole block was verified and nothing ended it early, decoded ones always.",
        numbers={"lengths": lengths},
        table=Table(("accepted", *(entry.source for entry in lengths)), tuple(rows)),
        draw=lambda figure: _with_legend(figure, lambda axes: draw_lengths(axes, lengths)),
    )


def sweep_panel(sample: Sample, temperatures: NDArray[np.float64]) -> Panel | None:
    """Threshold sweep; None without a full block."""
    sweeps = threshold_sweeps(sample.traces, temperatures)
    if not sweeps:
        return None

    def draw(figure: Figure) -> None:
        tokens, rate = figure.subplots(1, 2)
        draw_sweep_tokens(tokens, sweeps[0])
        draw_sweep_rate(rate, sweeps)
        legend(figure, [tokens, rate])

    shown_at = range(0, len(sweeps[0].thresholds), 10)
    return Panel(
        name="threshold_sweep",
        title="Threshold sweep",
        sentence=words.about_sweep(sweeps[0]),
        alt=(
            "Left, areas of accepted and rejected drafted tokens a round against the survival threshold; right, lines "
            "of the accepted share against the threshold, on survival and on each position's own confidence."
        ),
        method=f"On full blocks of {sample.description}, cut where the policy would have cut them.",
        numbers={"sweeps": sweeps},
        table=Table(
            ("threshold", *(f"{s.policy}: {what}" for s in sweeps for what in ("accepted", "rejected", "rate"))),
            tuple(
                (f"{sweeps[0].thresholds[i]:.1f}", *(cell for s in sweeps for cell in _sweep_cells(s, i)))
                for i in shown_at
            ),
        ),
        draw=draw,
    )


def audit_panel(sample: Sample, calibration: Calibration | None, *, rng: np.random.Generator) -> Panel:
    """The confidence head against what comes for free and against the truth."""
    temperatures = None if calibration is None else np.array(calibration.temperatures)
    scores = audit(sample.traces, temperatures, rng=rng)

    def draw(figure: Figure) -> None:
        auc, ece = figure.subplots(1, 2)
        draw_scores(auc, scores, "auc")
        draw_scores(ece, scores, "ece")
        legend(figure, [auc])

    missing = "" if len(scores) > 2 else " Traces recorded by dspark can hold the free signals and the oracle as well."
    return Panel(
        name="confidence_audit",
        title="Confidence audit",
        sentence=words.about_audit(scores, sample.description, greedy=bool(np.all(sample.traces.temperature == 0))),
        alt="Two line charts against draft position: ROC-AUC and ECE of each predictor of acceptance.",
        method=(
            "Each position on the rounds that reached it, every predictor on the same ones. The top-2 margin is taken "
            "as a probability for its ECE, which it is not meant to be; AUC asks for order only. Positions with fewer "
            f"than {FEWEST_OUTCOMES} of either outcome are in the table only." + missing
        ),
        numbers={"sample": sample.description, "held_out": sample.held_out, "signals": scores},
        table=_audit_table(scores),
        draw=draw,
    )


def drift_panel(traces: Traces, temperatures: NDArray[np.float64], *, rng: np.random.Generator) -> Panel | MissingPanel:
    """First against second half."""
    title = "Drift within the trace"
    found = drift(traces, temperatures, rng=rng)
    if found is None:
        return MissingPanel(
            "drift",
            title,
            "The traces are of a single request.",
            "Record more requests: rounds of one depend on each other.",
        )

    def draw(figure: Figure) -> None:
        axes = figure.subplots()
        for i, half in enumerate(found.halves):
            look = series_look(i + 1)
            draw_acceptance(
                axes,
                half.positions,
                label=f"{half.name}, {half.rounds:,} rounds",
                color=look.color,
                marker=look.marker,
                linestyle=look.linestyle,
            )
        legend(figure, [axes])

    return Panel(
        name="drift",
        title=title,
        sentence=words.about_drift(found),
        alt="Line chart of conditional acceptance against draft position in both halves.",
        method=(
            "Requests in the order in which they were first recorded, cut where half of the rounds are on either side. "
            "The share of random splits is that of a permutation test that deals whole requests."
        ),
        numbers={"halves": found.halves, "difference": found.difference, "p_value": found.p_value},
        table=_drift_table(found),
        draw=draw,
    )


def _with_legend(figure: Figure, draw: Callable[..., None]) -> None:
    axes = figure.subplots()
    draw(axes)
    legend(figure, [axes])


def _share(rate: float | None, trials: int) -> str:
    return "–" if rate is None else f"{rate:.3f} of {trials:,}"


def _by_position(gamma: int, columns: Sequence[tuple[str, Sequence[str]]]) -> Table:
    rows = tuple((str(k + 1), *(cells[k] for _, cells in columns)) for k in range(gamma))
    return Table(("position", *(name for name, _ in columns)), rows)


def _sweep_cells(sweep: ThresholdSweep, i: int) -> tuple[str, str, str]:
    return f"{sweep.accepted[i]:.3f}", f"{sweep.rejected[i]:.3f}", shown(sweep.acceptance_rate[i], ".3f")


def _audit_table(scores: Sequence[SignalScores]) -> Table:
    columns = [
        (f"{signal.label}: {measure.upper()}", [shown(getattr(p, measure), ".3f") for p in signal.positions])
        for measure in ("auc", "ece")
        for signal in scores
    ]
    table = _by_position(len(scores[0].positions), columns)
    pooled = [shown(s.pooled_auc, ".3f") for s in scores] + [shown(s.pooled_ece, ".3f") for s in scores]
    return Table(table.headers, (*table.rows, ("all", *pooled)))


def _drift_table(found: Drift) -> Table:
    columns: list[tuple[str, list[str]]] = [
        (half.name, [_share(p.rate, p.trials) for p in half.positions]) for half in found.halves
    ]
    return _by_position(len(found.halves[0].positions), columns)
