"""Drawings of a step curve, each into the Axes it is given; nothing global is set."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from dspark.profiles.curve import StepCurve
from dspark.profiles.profile import Profile
from dspark.profiles.staircase import FloatArray, Staircase
from dspark.profiles.whole_file import whole_file

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Told apart by the colour-blind and in grey; the dashes differ as well.
TARGET = "#0072b2"
ROUND = "#d55e00"
DRAFT = "#009e73"
# Batches further apart than by this factor share no linear axis: the small ones would be a line.
_MOST_LINEAR = 32
_MOST_TICKS = 8


def draw_step_time(axes: Axes, staircase: Staircase, *, label: str, color: str = TARGET, linestyle: str = "-") -> None:
    """Milliseconds of a step against the batch, flat up to each bucket, with the repeats' p20-p80 as a band."""
    edges = _edges(staircase)
    low, high = _held(staircase.p20_s) * 1e3, _held(staircase.p80_s) * 1e3
    axes.fill_between(edges, low, high, step="post", color=color, alpha=0.25, linewidth=0)
    time_ms = staircase.time_s * 1e3
    axes.stairs(time_ms, edges, baseline=None, color=color, label=label, linestyle=linestyle, linewidth=1.5)
    axes.set(xlabel=f"batch ({staircase.unit})", ylabel="time (ms)", xlim=(0, edges[-1]))
    _scale_to_stairs(axes)


def draw_steps_per_s(
    axes: Axes, curve: StepCurve, *, label: str, scope: str = "target", color: str = TARGET, linestyle: str = "-"
) -> None:
    """SPS(B), flat up to each bucket; the band of the target's own steps."""
    stairs = curve.reference_target
    edges = _edges(stairs)
    if scope == "target":
        low, high = 1 / stairs.p80_s, 1 / stairs.p20_s
        axes.fill_between(edges, _held(low), _held(high), step="post", color=color, alpha=0.25, linewidth=0)
    speed = curve.steps_per_s(stairs.buckets, scope=scope)
    axes.stairs(speed, edges, baseline=None, color=color, label=label, linestyle=linestyle, linewidth=1.5)
    axes.set(xlabel="batch (tokens)", ylabel="steps a second, SPS(B)", xlim=(0, edges[-1]))
    _scale_to_stairs(axes)


def draw_profile(time_axes: Axes, speed_axes: Axes, profile: Profile) -> None:
    """Step time of a round's parts into one Axes, SPS(B) of the target step and the whole round into the other."""
    curve = profile.curve
    draw_step_time(time_axes, curve.reference_target, label="target step")
    others = [(curve.verify_greedy, "verification, greedy", ROUND, ":"), (curve.draft, "draft block", DRAFT, "--")]
    for stairs, label, color, linestyle in others:
        if stairs is not None:
            per_tokens = _over_tokens(stairs, curve.tokens_per_request)
            draw_step_time(time_axes, per_tokens, label=f"{label}, full blocks", color=color, linestyle=linestyle)
    time_axes.set_xlim(0, curve.max_batch_tokens)
    draw_steps_per_s(speed_axes, curve, label="target step")
    draw_steps_per_s(speed_axes, curve, label="whole round", scope="round", color=ROUND, linestyle="--")
    smallest = int(curve.reference_target.buckets[0])
    if curve.max_batch_tokens > _MOST_LINEAR * smallest:
        for axes in (time_axes, speed_axes):
            _by_octaves(axes, smallest, curve.max_batch_tokens)


def save_plot(profile: Profile, path: Path) -> None:
    """One picture of the profile, a PNG file: step time and SPS(B), side by side.

    Raises:
        OSError: the place cannot be written.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    curve, conditions = profile.curve, profile.conditions
    figure = Figure(figsize=(11, 4.2), facecolor="white", layout="constrained")
    FigureCanvasAgg(figure)
    time_axes, speed_axes = figure.subplots(1, 2)
    draw_profile(time_axes, speed_axes, profile)
    for axes in (time_axes, speed_axes):
        axes.legend(frameon=False)
        axes.grid(alpha=0.3)
    drafter = "" if conditions.drafter is None else f" + {conditions.drafter.name}"
    figure.suptitle(
        f"{conditions.target.name}{drafter} on {conditions.device_name}, {conditions.dtype}, "
        f"behind {curve.reference_context_tokens} tokens of context",
        fontsize="medium",
    )
    with whole_file(path) as unfinished:
        figure.savefig(unfinished, dpi=150, format="png")


def _scale_to_stairs(axes: Axes) -> None:
    """From 0 to a little above every staircase; a band that disturbed repeats have blown up is cut off."""
    from matplotlib.patches import StepPatch

    stairs = [patch.get_data()[0] for patch in axes.patches if isinstance(patch, StepPatch)]
    axes.set_ylim(0, 1.3 * float(np.max(np.concatenate(stairs))))


def _by_octaves(axes: Axes, smallest: int, largest: int) -> None:
    """A logarithmic batch axis with powers of two, which leaves half an octave before the first bucket."""
    powers = range((smallest - 1).bit_length(), largest.bit_length())
    axes.set_xscale("log", base=2)
    ticks = [2**power for power in powers[:: -(-len(powers) // _MOST_TICKS)]]
    axes.set_xticks(ticks, [str(tick) for tick in ticks])
    # A staircase begins at 0, which has no place here.
    axes.set_xlim(smallest / 2**0.5, largest)


def _edges(staircase: Staircase) -> FloatArray:
    """[B+1]: a count just past one bucket already takes the next."""
    return np.concatenate([[0.0], staircase.buckets])


def _held(values: FloatArray) -> FloatArray:
    """[B] -> [B+1]: the last step drawn up to its own edge."""
    return np.append(values, values[-1])


def _over_tokens(staircase: Staircase, tokens_per_request: int) -> Staircase:
    """A staircase over requests as one over the packed tokens of that many full blocks."""
    document = staircase.to_dict() | {"unit": "tokens", "buckets": (staircase.buckets * tokens_per_request).tolist()}
    return Staircase.from_dict(document)
