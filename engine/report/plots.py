"""Drawings of a report's own numbers, each into the Axes it is given; nothing global is set."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from dspark.engine.report.acceptance import AcceptanceLengths
from dspark.engine.report.audit import SignalScores
from dspark.engine.report.frontier import ASYNC, FrontierLine
from dspark.engine.report.looks import VERMILION, Look, policy_look, series_look
from dspark.engine.report.picture import BLUE
from dspark.engine.report.sweep import ThresholdSweep

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def draw_lengths(axes: Axes, lengths: Sequence[AcceptanceLengths]) -> None:
    """Share of rounds against accepted drafted tokens, one group of bars a length."""
    drawn = [(i, entry) for i, entry in enumerate(lengths) if entry.rounds]
    width = 0.8 / max(len(drawn), 1)
    for place, (i, entry) in enumerate(drawn):
        look = series_look(i + 1)
        x = np.arange(len(entry.counts)) + (place - (len(drawn) - 1) / 2) * width
        share = np.array(entry.counts) / entry.rounds
        label = f"{entry.source}, {entry.rounds:,} rounds"
        hatch = "///" if place else None
        axes.bar(x, share, width, color=look.color, alpha=0.85, label=label, hatch=hatch, edgecolor="white")
    axes.set(xlabel="accepted drafted tokens (the bonus token comes on top)", ylabel="share of rounds")
    axes.set_xticks(range(max((len(entry.counts) for _, entry in drawn), default=1)))


def draw_sweep_tokens(axes: Axes, sweep: ThresholdSweep) -> None:
    """Accepted and rejected verified tokens a round against the threshold, one on top of the other."""
    accepted, verified = np.array(sweep.accepted), np.array(sweep.verified)
    axes.fill_between(sweep.thresholds, 0, accepted, color=BLUE, alpha=0.5, linewidth=0, label="accepted")
    axes.fill_between(
        sweep.thresholds,
        accepted,
        verified,
        facecolor=VERMILION,
        edgecolor="white",
        alpha=0.6,
        linewidth=0,
        hatch="////",
        label="rejected",
    )
    axes.plot(sweep.thresholds, verified, color=VERMILION, linewidth=1.2)
    axes.plot(sweep.thresholds, accepted, color=BLUE, linewidth=1.2)
    axes.set(xlim=(0, 1), xlabel=f"T of the policy {sweep.policy}:T", ylabel="drafted tokens a round")
    axes.set_ylim(bottom=0)


def draw_sweep_rate(axes: Axes, sweeps: Sequence[ThresholdSweep]) -> None:
    """Accepted share of what is verified against the threshold; nothing where nothing is verified."""
    for i, sweep in enumerate(sweeps):
        look = series_look(i + 1)
        rate = np.array(sweep.acceptance_rate, dtype=np.float64)
        axes.plot(sweep.thresholds, rate, color=look.color, linestyle=look.linestyle, label=f"{sweep.policy}:T")
    axes.set(xlim=(0, 1), ylim=(0, 1.02), xlabel="T", ylabel="accepted share of verified tokens")


def draw_scores(axes: Axes, scores: Sequence[SignalScores], measure: str) -> None:
    """`auc` or `ece` of every predictor against draft position, where enough of either outcome was seen to tell."""
    for i, signal in enumerate(scores):
        look = series_look(i)
        points = [(p.position, getattr(p, measure)) for p in signal.positions if p.telling]
        x, y = np.array(points, dtype=np.float64).reshape(-1, 2).T
        axes.plot(
            x, y, color=look.color, marker=look.marker, linestyle=look.linestyle, markersize=4, label=signal.label
        )
    positions = len(scores[0].positions) if scores else 0
    axes.set_xticks(range(1, positions + 1))
    axes.set(xlabel="draft position", ylabel={"auc": "ROC-AUC", "ece": "ECE"}[measure])
    if measure == "ece":
        axes.set_ylim(bottom=0)
    else:
        axes.axhline(0.5, color="#808080", linewidth=1, linestyle=":", zorder=1)


def draw_frontier(axes: Axes, lines: Sequence[FrontierLine]) -> None:
    """Throughput against speed per user; a policy's points run from one request at once (right) to the most (left)."""
    fixed = [line.policy for line in lines if line.policy.startswith("fixed:")]
    for line in lines:
        look = policy_look(line.policy)
        draw_throughput(axes, line, label=line.label, look=look)
        points = list(zip(line.tokens_per_s_per_user, line.tokens_per_s, strict=True))
        if line.policy == ASYNC:
            for concurrency, point in zip(line.concurrency, points, strict=True):
                _write_beside(axes, f"{concurrency}", point, offset=(4, 2), color=look.color)
        elif line.policy in fixed:
            # Each at another load: where they end, they are close to each other.
            place = max(2 * (fixed.index(line.policy) - len(fixed)) + 1, -len(points))
            _write_beside(axes, line.label, points[place], offset=(-5, -9), color=look.color)
    # Room for what is written left of the last points.
    axes.margins(x=0.12)


def draw_throughput(axes: Axes, line: FrontierLine, *, label: str, look: Look) -> None:
    """One line of it."""
    axes.plot(
        line.tokens_per_s_per_user,
        line.tokens_per_s,
        color=look.color,
        marker=look.marker,
        linestyle=look.linestyle,
        markersize=4,
        linewidth=look.linewidth,
        zorder=look.zorder,
        label=label,
    )
    axes.set(xscale="log", yscale="log", xlabel="tokens a second per user", ylabel="tokens a second")
    label_plainly(axes)


def draw_budget(axes: Axes, lines: Sequence[FrontierLine]) -> None:
    """Drafted tokens verified per request and round against concurrency."""
    for line in lines:
        look = policy_look(line.policy)
        axes.plot(
            line.concurrency,
            line.verified_per_request,
            color=look.color,
            marker=look.marker,
            linestyle=look.linestyle,
            markersize=4,
            linewidth=look.linewidth,
            zorder=look.zorder,
            label=line.label,
        )
        if line.policy.startswith("fixed:"):
            last = (line.concurrency[-1], line.verified_per_request[-1])
            _write_beside(axes, line.label, last, offset=(6, -3), color=look.color)
    axes.set_xscale("log", base=2)
    axes.set(xlabel="requests at once", ylabel="verified drafts per request and round")
    axes.set_ylim(bottom=0)
    ticks = sorted({c for line in lines for c in line.concurrency})
    axes.set_xticks(ticks, [str(tick) for tick in ticks])


def _write_beside(
    axes: Axes, text: str, point: tuple[float, float], *, offset: tuple[float, float], color: str
) -> None:
    """`text` at an offset, in typographic points, on the side that the offset leads to."""
    side = "left" if offset[0] > 0 else "right"
    axes.annotate(
        text, point, offset, textcoords="offset points", ha=side, fontsize="x-small", color=color, annotation_clip=False
    )


def label_plainly(axes: Axes) -> None:
    """On logarithmic axes, 1,000 in place of a power, at 1, 2 and 5 of each decade."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.10g}"))
        axis.set_minor_formatter(NullFormatter())
