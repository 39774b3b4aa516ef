"""What the drawings put into the Axes they are given."""

from __future__ import annotations

import numpy as np
import pytest
from matplotlib import rcParams

from dspark.engine.report.acceptance import AcceptanceLengths
from dspark.engine.report.audit import PositionScore, SignalScores
from dspark.engine.report.frontier import FrontierLine
from dspark.engine.report.looks import MOST_SERIES, policy_look, series_look
from dspark.engine.report.plots import (
    draw_budget,
    draw_frontier,
    draw_lengths,
    draw_scores,
    draw_sweep_rate,
    draw_sweep_tokens,
)
from dspark.engine.report.sweep import ThresholdSweep

LENGTHS = [
    AcceptanceLengths("recorded", 8, (4, 2, 2), 0.75, 0),
    AcceptanceLengths("empty", 0, (0, 0, 0), None, 0),
    AcceptanceLengths("decoded", 2, (1, 1), 0.5, 0),
]
SWEEP = ThresholdSweep("threshold", (0.0, 0.5, 1.0), (7.0, 3.0, 0.0), (2.0, 1.5, 0.0), (2 / 7, 0.5, None))
SCORES = [
    SignalScores(
        "head", (PositionScore(1, 100, 50, 0.8, 0.05, 0.1), PositionScore(2, 50, 45, 0.9, 0.3, 0.2)), 0.8, 0.05
    )
]


def line(policy, verified):
    return FrontierLine(policy, (1, 8), (10.0, 40.0), (10.0, 5.0), verified, (1.0, 1.0), ((10.0,), (40.0,)))


LINES = [line("none", (0.0, 0.0)), line("async", (4.0, 2.0)), line("oracle", (3.0, 1.0))]


def test_lengths_are_shares_of_each_source_side_by_side(axes):
    draw_lengths(axes, LENGTHS)
    heights = [[bar.get_height() for bar in container] for container in axes.containers]
    assert heights == [[0.5, 0.25, 0.25], [0.5, 0.5]]
    recorded, decoded = ([bar.get_x() for bar in container] for container in axes.containers)
    assert decoded[0] == pytest.approx(recorded[0] + axes.containers[0][0].get_width())


def test_accepted_and_rejected_tokens_are_stacked(axes):
    draw_sweep_tokens(axes, SWEEP)
    verified, accepted = (np.asarray(drawn.get_ydata()).tolist() for drawn in axes.lines)
    assert (verified, accepted) == ([7, 3, 0], [2, 1.5, 0])
    assert axes.get_ylim()[0] == 0


def test_nothing_is_drawn_where_nothing_is_verified(axes):
    draw_sweep_rate(axes, [SWEEP])
    np.testing.assert_array_equal(axes.lines[0].get_ydata(), [2 / 7, 0.5, np.nan])


@pytest.mark.parametrize(("measure", "value"), [("auc", 0.8), ("ece", 0.05)])
def test_positions_that_tell_nothing_are_not_drawn(axes, measure, value):
    draw_scores(axes, SCORES, measure)
    # Position 2 saw five rejections.
    assert (axes.lines[0].get_xdata().tolist(), axes.lines[0].get_ydata().tolist()) == ([1], [value])


def test_the_frontier_is_throughput_over_speed_per_user(axes):
    draw_frontier(axes, LINES)
    assert [drawn.get_label() for drawn in axes.lines] == ["none", "async", "oracle confidence (bound)"]
    assert list(axes.lines[1].get_xdata()) == [10.0, 5.0]
    assert list(axes.lines[1].get_ydata()) == [10.0, 40.0]
    assert (axes.get_xscale(), axes.get_yscale()) == ("log", "log")


def test_the_frontier_writes_requests_at_async_and_names_at_fixed_lengths(axes):
    draw_frontier(axes, [*LINES, line("fixed:1", (1.0, 1.0)), line("fixed:7", (7.0, 7.0))])
    written = [(text.get_text(), text.xy) for text in axes.texts]
    assert written == [("1", (10.0, 10.0)), ("8", (5.0, 40.0)), ("fixed:1", (10.0, 10.0)), ("fixed:7", (5.0, 40.0))]


def test_fixed_lengths_are_named_in_the_budget(axes):
    draw_budget(axes, [*LINES, line("fixed:1", (1.0, 1.0)), line("fixed:7", (7.0, 7.0))])
    assert [(text.get_text(), text.xy) for text in axes.texts] == [("fixed:1", (8, 1.0)), ("fixed:7", (8, 7.0))]


@pytest.mark.parametrize("draw", [draw_frontier, draw_budget])
def test_causal_shows_on_async(axes, draw):
    draw(axes, [line("causal", (4.0, 2.0)), line("async", (4.0, 2.0))])
    causal, below = axes.lines
    assert causal.get_zorder() > below.get_zorder() and causal.get_linewidth() < below.get_linewidth()


def test_the_budget_names_every_concurrency(axes):
    draw_budget(axes, LINES)
    assert [tick.get_text() for tick in axes.get_xticklabels()] == ["1", "8"]
    assert list(axes.lines[1].get_ydata()) == [4.0, 2.0]


def test_series_are_told_apart_without_colour():
    looks = [series_look(i) for i in range(MOST_SERIES)]
    assert len({look.marker for look in looks}) == MOST_SERIES
    policies = ["none", "fixed:1", "fixed:3", "fixed:7", "threshold:0.5", "causal", "async", "oracle"]
    assert len({policy_look(name).marker for name in policies}) == len(policies)
    fixed = [policy_look(f"fixed:{length}") for length in (1, 3, 7)]
    assert len({look.color for look in fixed}) == len({look.linestyle for look in fixed}) == 3


@pytest.mark.filterwarnings("error")
def test_nothing_to_draw_and_nothing_global(axes):
    before = dict(rcParams)
    draw_lengths(axes, LENGTHS[1:2])
    draw_scores(axes, [], "auc")
    draw_frontier(axes, [])
    draw_sweep_rate(axes, [])
    axes.figure.canvas.draw()
    assert dict(rcParams) == before
