"""What the drawings put into the Axes they are given."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from matplotlib import rcParams
from matplotlib.figure import Figure

from dspark.profiles import Staircase, StepCurve
from dspark.profiles.plots import draw_profile, draw_step_time, draw_steps_per_s, save_plot


def test_step_time_is_a_staircase_that_rises_behind_each_bucket(axes, profile):
    stairs = profile.curve.target
    draw_step_time(axes, stairs, label="target")
    (drawn,) = axes.patches
    values, edges, _ = drawn.get_data()
    assert edges.tolist() == [0, 1, 2, 4, 8, 16, 32]
    np.testing.assert_allclose(values, stairs.time_s * 1e3)
    # At every count the drawing shows what a look-up gives.
    for count in range(1, 33):
        shown = values[np.searchsorted(edges, count, side="left") - 1]
        assert shown == pytest.approx(float(stairs.time_at(count)) * 1e3)


def test_the_band_lies_around_the_stairs(axes, profile):
    stairs = profile.curve.target
    draw_step_time(axes, stairs, label="target")
    (band,) = axes.collections
    corners = band.get_paths()[0].vertices
    # Between two edges, say at 12 tokens, only the horizontal parts of bucket 16 are there.
    at = [y for x, y in corners if x == 16]
    index = stairs.buckets.tolist().index(16)
    assert min(abs(y - stairs.p20_s[index] * 1e3) for y in at) < 1e-9
    assert min(abs(y - stairs.p80_s[index] * 1e3) for y in at) < 1e-9


def test_a_disturbed_repeat_does_not_flatten_the_stairs(axes, profile):
    stairs = profile.curve.target
    disturbed = Staircase.from_dict(stairs.to_dict() | {"p80_s": (100 * stairs.time_s).tolist()})
    draw_step_time(axes, stairs, label="one")
    draw_step_time(axes, disturbed, label="other")
    assert axes.get_ylim()[1] == pytest.approx(1.3e3 * stairs.time_s.max())


def test_a_wide_range_of_batches_is_drawn_by_octaves(profile):
    document = profile.curve.to_dict()
    document["target"]["buckets"] = [1, 2, 4, 8, 16, 40]
    for stairs in ("draft", "verify_greedy", "verify_sampled"):
        document[stairs]["buckets"] = [1, 2, 5]
    for curve, scale in ((profile.curve, "linear"), (StepCurve.from_dict(document), "log")):
        drawn = Figure().subplots(1, 2)
        draw_profile(*drawn, replace(profile, curve=curve))
        assert [axes.get_xscale() for axes in drawn] == [scale, scale]
    for axes in drawn:
        assert [tick.get_text() for tick in axes.get_xticklabels()] == ["1", "2", "4", "8", "16", "32"]
        # All of the first stair that there is room for, up to the last.
        assert 0 < axes.get_xlim()[0] < 1 and axes.get_xlim()[1] == 40


def test_speed_is_the_reciprocal(axes, profile):
    draw_steps_per_s(axes, profile.curve, label="target")
    draw_steps_per_s(axes, profile.curve, label="round", scope="round")
    target, whole = (patch.get_data().values for patch in axes.patches)
    np.testing.assert_allclose(target, 1 / profile.curve.target.time_s)
    assert (whole < target).all()


def test_a_profile_shows_its_parts_beside_its_speeds(profile):
    time_axes, speed_axes = Figure().subplots(1, 2)
    draw_profile(time_axes, speed_axes, profile)
    labels = [[patch.get_label() for patch in axes.patches] for axes in (time_axes, speed_axes)]
    assert labels == [
        ["target step", "verification, greedy, full blocks", "draft block, full blocks"],
        ["target step", "whole round"],
    ]


@pytest.mark.filterwarnings("error")
def test_a_picture_and_nothing_global(profile, tmp_path):
    before = dict(rcParams)
    save_plot(profile, tmp_path / "new" / "profile.png")
    assert (tmp_path / "new" / "profile.png").read_bytes().startswith(b"\x89PNG")
    assert dict(rcParams) == before


def test_a_picture_that_fails_leaves_the_one_before(profile, tmp_path, monkeypatch):
    path = tmp_path / "profile.png"
    path.write_bytes(b"before")

    def broken(figure, place, **options):
        place.write_bytes(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Figure, "savefig", broken)
    with pytest.raises(OSError, match="No space left"):
        save_plot(profile, path)
    assert {file.name: file.read_bytes() for file in tmp_path.iterdir()} == {"profile.png": b"before"}
