"""What the drawings put into the Axes they are given."""

from __future__ import annotations

import numpy as np
import pytest
from matplotlib import rcParams
from matplotlib.axes import Axes

from dspark.calibration import Proportion, reliability_bins, wilson_interval
from dspark.calibration.plots import AFTER, BEFORE, draw_acceptance, draw_counts, draw_reliability


def error_bars(axes: Axes, container: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """x [n], y [n] and the ends of the bars [n, 2]."""
    line, _, (bars,) = axes.containers[container].lines
    ends = np.array([segment[:, 1] for segment in bars.get_segments()])
    return np.asarray(line.get_xdata()), np.asarray(line.get_ydata()), ends


def test_reliability_shows_used_bins_with_wilson_intervals(axes: Axes) -> None:
    bins = reliability_bins([0.02, 0.04, 0.51, 0.52, 0.99, 1.0], [0, 0, 1, 0, 1, 1], bins=10)
    draw_reliability(axes, bins, label="before", color=BEFORE)
    x, y, ends = error_bars(axes)
    np.testing.assert_allclose(x, [0.03, 0.515, 0.995])
    np.testing.assert_allclose(y, [0, 0.5, 1])
    np.testing.assert_allclose(ends.T, wilson_interval(np.array([0, 1, 2]), np.array([2, 2, 2])), atol=1e-12)


def test_counts_are_a_histogram_of_the_predictions(axes: Axes) -> None:
    bins = reliability_bins([0.1, 0.6, 0.7], [0, 1, 1], bins=2)
    draw_counts(axes, bins, label="after")
    np.testing.assert_array_equal(axes.patches[0].get_data().values, [1, 2])


def test_acceptance_leaves_out_positions_never_reached(axes: Axes) -> None:
    proportions = [Proportion.of(9, 10), Proportion.of(0, 3), Proportion.of(0, 0)]
    draw_acceptance(axes, proportions, label="math", color=AFTER, marker="s", linestyle="--")
    x, y, _ = error_bars(axes)
    (line,) = axes.lines[:1]
    assert (line.get_marker(), line.get_linestyle()) == ("s", "--")
    assert x.tolist() == [1, 2]
    np.testing.assert_allclose(y, [0.9, 0])


@pytest.mark.filterwarnings("error")
def test_nothing_to_draw_and_nothing_global(axes: Axes) -> None:
    before = dict(rcParams)
    empty = reliability_bins([], [])
    draw_reliability(axes, empty, label="before")
    draw_counts(axes, empty, label="before")
    draw_acceptance(axes, [], label="none")
    axes.figure.canvas.draw()
    assert dict(rcParams) == before
