"""Several runs in one drawing each: acceptance, step curves and frontiers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from dspark.calibration import Proportion, acceptance_by_position
from dspark.calibration.plots import draw_acceptance
from dspark.engine.report.frontier import ASYNC, Frontier
from dspark.engine.report.looks import MOST_SERIES, series_look
from dspark.engine.report.panel import Panel, Table, legend, shown
from dspark.engine.report.plots import draw_throughput, label_plainly
from dspark.engine.report.section import Section
from dspark.engine.report.words import if_held, joined
from dspark.profiles import Profile
from dspark.profiles.plots import draw_step_time
from dspark.profiles.trust import doubts_about

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def comparison_panels(sections: Sequence[Section]) -> list[Panel]:
    """Of whatever at least two of the runs have."""
    traced = [
        (s.run.name, acceptance_by_position(s.run.traces))
        for s in sections
        if s.run.traces is not None and len(s.run.traces)
    ]
    profiled = [(s.run.name, s.run.profile) for s in sections if s.run.profile is not None]
    replayed = [(s.run.name, s.frontier) for s in sections if s.frontier is not None]
    panels = []
    if len(traced) > 1:
        panels.append(_acceptance(traced[:MOST_SERIES]))
    if len(profiled) > 1:
        panels.append(_curves(profiled[:MOST_SERIES]))
    if len(replayed) > 1:
        panels.append(_frontiers(replayed[:MOST_SERIES], [profile for _, profile in profiled]))
    return panels


def _acceptance(runs: Sequence[tuple[str, list[Proportion]]]) -> Panel:
    def draw(figure: Figure) -> None:
        axes = figure.subplots()
        for i, (name, positions) in enumerate(runs):
            look = series_look(i + 1)
            draw_acceptance(axes, positions, label=name, color=look.color, marker=look.marker, linestyle=look.linestyle)
        axes.set_xticks(range(1, max(len(positions) for _, positions in runs) + 1))
        legend(figure, [axes])

    first = joined(f"{shown(positions[0].rate, '.0%')} in {name}" for name, positions in runs)
    longest = max(len(positions) for _, positions in runs)
    rows = tuple(
        (str(k + 1), *(shown(p[k].rate, ".3f") if k < len(p) else "–" for _, p in runs)) for k in range(longest)
    )
    return Panel(
        name="compared_acceptance",
        title="Conditional acceptance of the runs",
        sentence=f"Acceptance at position 1 is {first}.",
        alt=f"Line chart of acceptance against draft position, one line for each of {len(runs)} runs.",
        method="All rounds of each run; bars are 95 % Wilson intervals.",
        numbers={"runs": [{"run": name, "positions": positions} for name, positions in runs]},
        table=Table(("position", *(name for name, _ in runs)), rows),
        draw=draw,
    )


def _curves(runs: Sequence[tuple[str, Profile]]) -> Panel:
    def draw(figure: Figure) -> None:
        axes = figure.subplots()
        for i, (name, profile) in enumerate(runs):
            look = series_look(i + 1)
            draw_step_time(axes, profile.curve.reference_target, label=name, color=look.color, linestyle=look.linestyle)
        axes.set(xscale="log", yscale="log")
        # A staircase begins at 0, which has no place here.
        axes.set_xlim(0.8, max(profile.curve.max_batch_tokens for _, profile in runs))
        drawn = np.concatenate([profile.curve.reference_target.time_s for _, profile in runs])
        axes.set_ylim(0.8e3 * drawn.min(), 1.25e3 * drawn.max())
        label_plainly(axes)
        legend(figure, [axes])

    limit = min(profile.curve.max_batch_tokens for _, profile in runs)
    sizes = sorted(
        {int(b) for _, profile in runs for b in profile.curve.reference_target.buckets if b <= limit} | {limit}
    )
    times = [[float(profile.curve.step_time_s(size)) for _, profile in runs] for size in sizes]
    last = joined(f"{time * 1e3:.2f} ms in {name}" for time, (name, _) in zip(times[-1], runs, strict=True))
    return Panel(
        name="compared_step_curves",
        title="Step curves of the runs",
        sentence=_told(f"A target step over {limit:,} packed tokens takes {last}.", [profile for _, profile in runs]),
        alt=f"Staircases of milliseconds of a step against packed tokens, both axes logarithmic, {len(runs)} runs.",
        method="Each at its own reference context; bands are the 20th to 80th percentile of repeats.",
        numbers={"runs": [name for name, _ in runs], "batch_tokens": sizes, "step_time_s": times},
        table=Table(
            ("packed tokens", *(f"{name}, ms" for name, _ in runs)),
            tuple((f"{size:,}", *(f"{t * 1e3:.3f}" for t in row)) for size, row in zip(sizes, times, strict=True)),
        ),
        draw=draw,
    )


def _frontiers(runs: Sequence[tuple[str, Frontier]], profiles: Sequence[Profile]) -> Panel:
    lines = [(name, frontier.line(ASYNC)) for name, frontier in runs]
    shared = sorted(set.intersection(*(set(line.concurrency) for _, line in lines)))

    def at(concurrency: int) -> list[float]:
        return [line.tokens_per_s[line.concurrency.index(concurrency)] for _, line in lines]

    def draw(figure: Figure) -> None:
        axes = figure.subplots()
        for i, (name, line) in enumerate(lines):
            draw_throughput(axes, line, label=name, look=series_look(i + 1))
        legend(figure, [axes])

    last = joined(f"{speed:,.0f} in {name}" for speed, (name, _) in zip(at(shared[-1]), lines, strict=True))
    return Panel(
        name="compared_frontiers",
        title="Scheduled throughput of the runs",
        sentence=_told(f"With `{ASYNC}` at {shared[-1]:,} requests at once, tokens a second are {last}.", profiles),
        alt=f"Line chart of tokens a second against tokens a second per user, one line for each of {len(runs)} runs.",
        method="Replays as under each run.",
        numbers={"concurrency": shared, "runs": [name for name, _ in runs], "tokens_per_s": [at(c) for c in shared]},
        table=Table(
            ("requests at once", *(f"{name}, tok/s" for name, _ in runs)),
            tuple((f"{c:,}", *(f"{speed:,.1f}" for speed in at(c))) for c in shared),
        ),
        draw=draw,
    )


def _told(claim: str, profiles: Sequence[Profile]) -> str:
    return if_held(claim) if any(doubts_about(profile) for profile in profiles) else claim
