"""Figures that rest on the profile: the step curve, and the policies replayed with it."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import numpy as np

from dspark.engine.report import words
from dspark.engine.report.frontier import ASYNC, MOST_CONCURRENT, REPEATS, Frontier, are_apart
from dspark.engine.report.panel import Panel, Table, legend
from dspark.engine.report.plots import draw_budget, draw_frontier
from dspark.engine.report.rounds import Sample
from dspark.engine.report.verdict import Gain, Verdict
from dspark.profiles import Profile
from dspark.profiles.plots import draw_profile
from dspark.profiles.trust import doubts_about

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Lines that differ by a smaller share, or by fewer drafts a round, are one to the eye.
_APART = 0.01


def step_curve_panel(profile: Profile) -> Panel:
    """The staircase, with the spread of its repeats."""
    curve, stairs = profile.curve, profile.curve.reference_target
    round_s = curve.round_time_s(stairs.buckets)
    rows = tuple(
        (
            f"{bucket:,}",
            f"{stairs.time_s[i] * 1e3:.3f}",
            f"{stairs.p20_s[i] * 1e3:.3f} – {stairs.p80_s[i] * 1e3:.3f}",
            f"{round_s[i] * 1e3:.3f}",
            f"{1 / stairs.time_s[i]:,.1f}",
        )
        for i, bucket in enumerate(stairs.buckets)
    )

    def draw(figure: Figure) -> None:
        time_axes, speed_axes = figure.subplots(1, 2)
        draw_profile(time_axes, speed_axes, profile)
        legend(figure, [time_axes, speed_axes])

    return Panel(
        name="step_curve",
        title="Step curve",
        sentence=words.about_curve(profile),
        alt="Two staircases against packed tokens: milliseconds of a step, and steps a second, with bands of repeats.",
        method=(
            f"Measured on {profile.conditions.device_name} in {profile.conditions.dtype}, full blocks behind "
            f"{curve.reference_context_tokens:,} tokens of context. A batch takes the time of the smallest bucket that "
            "holds it; bands are the 20th to 80th percentile of repeats."
        ),
        numbers={
            "curve": curve.to_dict(),
            "round_time_s": round_s,
            "notes": profile.notes,
            "doubts": doubts_about(profile),
        },
        table=Table(("packed tokens", "step ms", "p20 – p80", "greedy round ms", "steps/s"), rows),
        draw=draw,
    )


def frontier_panels(frontier: Frontier, verdict: Verdict, sample: Sample, *, calibrated: bool) -> list[Panel]:
    """Throughput against speed per user, and the verification budget against concurrency."""
    repeats = "each on requests of its own"
    if not are_apart(frontier.requests):
        repeats = "on the same requests, too few to share out, and hold for these requests alone"
    method = (
        f"{words.plural(frontier.blocks, 'full block')} of {words.plural(frontier.requests, 'request')} "
        f"({sample.description}) are resampled: each place in the batch takes recorded requests at random, one after "
        "the other, each for as many rounds as were recorded of it, and every round verifies one of that request's "
        "blocks, drawn with replacement; so requests keep their difficulty, and the order of their blocks is lost. "
        "The engine's own scheduling functions decide, with "
        f"{'calibrated' if calibrated else 'uncalibrated'} confidences, and the profile says what a round costs behind "
        f"{frontier.setting.context_tokens:,} tokens of context, drafting and "
        f"verification {'sampled' if frontier.setting.sampled else 'greedy'}. `fixed:k` drafts k tokens a block, which "
        "take as long as a whole one where the profile knows no shorter ones. The bound knows every outcome "
        "beforehand: no schedule of the same blocks is faster. Every policy sees the same draws; "
        f"intervals (95 %, Student's t) come from {REPEATS} repeats, {repeats}."
    )
    method += f" Points run from few requests at once (right) to many (left), written beside those of `{ASYNC}`."
    method += _hidden(frontier, "tokens_per_s")
    if frontier.concurrency_limit < MOST_CONCURRENT:
        method += f" The profile covers {words.plural(frontier.concurrency_limit, 'request')} at once and no more."
    numbers = _numbers(frontier, verdict)
    return [
        Panel(
            name="policy_frontier",
            title="Policy frontier",
            sentence=_about_frontier(frontier, verdict),
            alt=(
                "Line chart, both axes logarithmic: tokens a second against tokens a second per user, one line a "
                f"policy, each from {frontier.concurrency[0]} to {frontier.concurrency[-1]} requests at once."
            ),
            method=method,
            numbers=numbers,
            table=_throughput_table(frontier, verdict),
            draw=lambda figure: _draw(figure, draw_frontier, frontier),
            size=(8.0, 5.0),
        ),
        Panel(
            name="verification_budget",
            title="Verification budget",
            sentence=words.if_held(_about_budget(frontier)) if verdict.doubts else _about_budget(frontier),
            alt="Line chart of verified drafts per request and round against requests at once, one line a policy.",
            method="From the same replay: means over its rounds." + _hidden(frontier, "verified_per_request"),
            numbers={
                "concurrency": frontier.concurrency,
                "verified_per_request": _by_policy(frontier, "verified_per_request"),
            },
            table=_budget_table(frontier),
            draw=lambda figure: _draw(figure, draw_budget, frontier),
        ),
    ]


def _draw(figure: Figure, draw: Any, frontier: Frontier) -> None:
    axes = figure.subplots()
    draw(axes, frontier.lines)
    legend(figure, [axes])


def _hidden(frontier: Frontier, name: str) -> str:
    """Which lines cannot be seen, since they lie on that of `async`."""
    shown = getattr(frontier.line(ASYNC), name)
    same = [
        f"`{line.policy}`"
        for line in frontier.lines
        if line.policy != ASYNC and np.allclose(getattr(line, name), shown, rtol=_APART, atol=_APART)
    ]
    return f" {words.joined(same)} {'lies' if len(same) == 1 else 'lie'} on `{ASYNC}` throughout." if same else ""


def _about_frontier(frontier: Frontier, verdict: Verdict) -> str:
    line = frontier.line(ASYNC)
    first, last = line.concurrency[0], line.concurrency[-1]
    start = f"{line.tokens_per_s[0]:,.0f} tokens a second at {words.plural(first, 'request')} at once"
    ends = f"`{ASYNC}` gives {start}" if last == first else f"`{ASYNC}` goes from {start}"
    if last > first:
        ends += f" to {line.tokens_per_s[-1]:,.0f} at {last:,} ({line.tokens_per_s_per_user[-1]:,.1f} per user)"
    best = max(verdict.scheduled, key=lambda gain: gain.gain)
    sentence = f"{ends}; against the best policy that does not schedule its largest gain is {_gain(best)}."
    return words.if_held(sentence) if verdict.doubts else sentence


def _gain(gain: Gain) -> str:
    return f"{gain.gain:+.1%} ({gain.low:+.1%} to {gain.high:+.1%}) at {gain.concurrency:,}, against `{gain.against}`"


def _about_budget(frontier: Frontier) -> str:
    line = frontier.line(ASYNC)
    budget, least = line.verified_per_request, min(line.verified_per_request)
    at = line.concurrency[budget.index(least)]
    first = (
        f"`{ASYNC}` verifies {budget[0]:.2f} drafted tokens per request and round at {line.concurrency[0]:,} at once"
    )
    if len(budget) == 1:
        return first + "."
    sentence = f"{first} and {budget[-1]:.2f} at {line.concurrency[-1]:,}; it is thriftiest at {at:,} with {least:.2f}"
    idle = [c for c, share in zip(line.concurrency, line.drafting_share, strict=True) if share < 0.5]
    if idle:
        sentence += f"; at {words.joined(f'{c:,}' for c in idle)} it leaves drafting out in most rounds"
    return sentence + "."


def _by_policy(frontier: Frontier, name: str) -> dict[str, Any]:
    return {line.policy: getattr(line, name) for line in frontier.lines}


def _numbers(frontier: Frontier, verdict: Verdict) -> dict[str, Any]:
    lines = [{key: value for key, value in asdict(line).items() if key != "concurrency"} for line in frontier.lines]
    setting = frontier.setting
    return {
        "concurrency": frontier.concurrency,
        "policies": lines,
        "requests": frontier.requests,
        "blocks": frontier.blocks,
        "context_tokens": setting.context_tokens,
        "sampled": setting.sampled,
        "profiled_requests": frontier.concurrency_limit,
        "scheduled_gain": verdict.scheduled,
        "bound_gain": verdict.bound,
        "whole_block_extra_cost": verdict.extra_cost,
    }


def _throughput_table(frontier: Frontier, verdict: Verdict) -> Table:
    headers = ("requests at once", *(f"{line.label}, tok/s" for line in frontier.lines), "async gains")
    rows = tuple(
        (f"{concurrency:,}", *(f"{line.tokens_per_s[i]:,.1f}" for line in frontier.lines), _short(verdict.scheduled[i]))
        for i, concurrency in enumerate(frontier.concurrency)
    )
    return Table(headers, rows)


def _short(gain: Gain) -> str:
    return f"{gain.gain:+.1%} ± {(gain.high - gain.low) / 2:.1%} ({gain.against})"


def _budget_table(frontier: Frontier) -> Table:
    rows = tuple(
        (f"{concurrency:,}", *(f"{line.verified_per_request[i]:.2f}" for line in frontier.lines))
        for i, concurrency in enumerate(frontier.concurrency)
    )
    return Table(("requests at once", *(line.label for line in frontier.lines)), rows)
