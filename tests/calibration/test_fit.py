"""Temperatures recovered from simulated truth."""

from __future__ import annotations

import numpy as np
import pytest

from dspark.calibration import (
    METHODS,
    CalibrationError,
    TemperatureGrid,
    Traces,
    calibrate,
    ece_null,
    expected_calibration_error,
    fit_temperatures,
    make_traces,
    measure,
)
from dspark.calibration.search import SurvivalCells

TRUTH = (0.4, 0.6, 0.8, 1.0, 1.5, 2.0, 3.0)


@pytest.fixture(scope="module")
def many(simulate) -> Traces:
    return simulate(200_000, TRUTH)


@pytest.fixture(scope="module")
def calibrated(simulate) -> Traces:
    return simulate(200_000, [1.0] * 7)


def test_likelihood_recovers_every_temperature(many: Traces) -> None:
    found = [fit.temperature for fit in fit_temperatures(many, "nll")]
    np.testing.assert_allclose(found, TRUTH, rtol=0.1)


@pytest.mark.parametrize(("method", "inside"), [("sts", 7), ("nll", 7), ("joint", 6)])
def test_held_out_ece_comes_inside_its_null(many: Traces, method: str, inside: int) -> None:
    result = calibrate(many, method, holdout=0.5)
    assert sum(bool(p.metrics.after.calibrated) for p in result.positions) >= inside
    assert [p.metrics.before.calibrated for p in result.positions] != [True] * 7
    assert not any(p.metrics.worse for p in result.positions)
    assert result.verdict.startswith("Calibration helped")
    assert not result.warnings


def test_sequential_fits_are_as_good_as_the_truth_over_many_samples(simulate) -> None:
    """The true temperatures themselves miss a 95 % null at one position of twenty, so one sample proves little."""
    inside, ece, null = [], [], []
    for seed in range(8):
        for position in calibrate(simulate(60_000, TRUTH, seed=seed), holdout=0.5).positions:
            inside.append(position.metrics.after.calibrated)
            ece.append(position.metrics.after.ece)
            null.append(position.metrics.after.ece_null.mean)
    assert np.mean(inside) >= 0.8
    assert np.mean(ece) <= 1.15 * np.mean(null)


@pytest.mark.parametrize("method", METHODS)
def test_calibrated_input_changes_nothing_beyond_noise(calibrated: Traces, method: str) -> None:
    result = calibrate(calibrated, method)
    assert "calibrated already" in result.verdict
    for position in result.positions:
        null = position.metrics.after.ece_null
        assert abs(position.metrics.after.ece - position.metrics.before.ece) < null.high - null.mean
        assert not position.metrics.worse
    np.testing.assert_allclose(result.temperatures, 1.0, rtol=0.2)


@pytest.mark.parametrize("method", METHODS)
def test_fifty_rounds_warn_and_change_nothing(simulate, method: str) -> None:
    result = calibrate(simulate(50, TRUTH), method)
    assert result.temperatures == (1.0,) * 7
    assert "Too little was observed" in result.verdict
    assert any("rounds to fit on" in warning for warning in result.warnings)
    (left,) = [warning for warning in result.warnings if "left at 1" in warning]
    assert all(f"{position} (" in left for position in range(1, 8))


def test_joint_is_no_worse_than_sequential_where_it_was_fitted(simulate) -> None:
    traces = simulate(8000, TRUTH)

    def mean_ece(method: str) -> float:
        result = calibrate(traces, method, holdout=0)
        return float(np.mean([p.metrics.after.ece for p in result.positions]))

    assert mean_ece("joint") <= mean_ece("sts") + 1e-9


def test_nll_uses_only_rounds_that_reached_the_position(simulate) -> None:
    """Logits behind a rejection are of tokens that nobody judged; they may be anything."""
    traces = simulate(5000, (1.5, 0.7, 2.0))
    spoiled = np.where(np.arange(3) < traces.observed[:, None], traces.confidence_logits, 9.0)
    other = make_traces(request=traces.request, accepted=traces.accepted, confidence_logits=spoiled)
    assert fit_temperatures(other, "nll") == fit_temperatures(traces, "nll")


def test_trimmed_rounds_do_not_bias_survival(simulate) -> None:
    """Half of the blocks are verified to depth 2 only: what is known about depth 4 comes from the other half."""
    full = simulate(60_000, (0.6, 1.0, 1.6, 2.2))
    depth = np.where(np.random.default_rng(5).random(len(full)) < 0.5, 2, 4)
    trimmed = make_traces(
        request=full.request,
        accepted=np.minimum(full.accepted, depth),
        confidence_logits=full.confidence_logits,
        verified=depth,
    )
    known, survived = trimmed.survival_known_at(4)
    np.testing.assert_array_equal(known, depth == 4)
    np.testing.assert_array_equal(survived[known], (full.accepted == 4)[depth == 4])
    result = calibrate(trimmed)
    assert all(p.metrics.after.calibrated for p in result.positions)
    assert any("short of what was drafted" in warning for warning in result.warnings)


@pytest.mark.parametrize(("policy", "warned"), [("fixed:3", False), ("threshold:0.5", True), ("", True)])
def test_blocks_cut_short_are_suspect_unless_only_limits_can_have_cut_them(simulate, policy: str, warned: bool) -> None:
    full = simulate(3000, (1.0, 1.0, 1.0))
    verified = np.where(np.arange(3000) % 10 == 0, 1, 3)
    traces = make_traces(
        request=full.request,
        accepted=np.minimum(full.accepted, verified),
        confidence_logits=full.confidence_logits,
        verified=verified,
        policy=policy,
    )
    found = any("short of what was drafted" in warning for warning in calibrate(traces).warnings)
    assert found is warned


def test_stopped_rounds_are_unknown_behind_the_stop() -> None:
    traces = make_traces(
        request=[0, 0, 0], accepted=[2, 2, 1], observed=[2, 3, 2], verified=4, confidence_logits=np.zeros((3, 4))
    )
    known = [traces.survival_known_at(k)[0].tolist() for k in range(1, 5)]
    # The first round was stopped behind its second token; the others ended by a rejection, which settles the rest.
    assert known == [[True, True, True], [True, True, True], [False, True, True], [False, True, True]]


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(("sign", "edge"), [(-1.0, 10.0), (1.0, 0.1)], ids=["backward head", "perfect head"])
def test_a_minimum_at_the_edge_of_the_grid_is_reported(method: str, sign: float, edge: float) -> None:
    rng = np.random.default_rng(0)
    accepted = rng.random(4000) < 0.6
    logits = np.where(accepted, 1.0, -1.0) * sign * 0.4 + rng.uniform(-0.1, 0.1, 4000)
    traces = make_traces(request=np.arange(4000), accepted=accepted, confidence_logits=logits[:, None])
    result = calibrate(traces, method)
    assert result.temperatures[0] == pytest.approx(edge, rel=0.01)
    assert result.positions[0].fit.on_edge
    assert any("edge of the grid" in warning for warning in result.warnings)


@pytest.mark.parametrize("accepted", [0, 2], ids=["none accepted", "all accepted"])
@pytest.mark.parametrize("method", METHODS)
def test_one_outcome_only_leaves_temperatures_at_one(accepted: int, method: str) -> None:
    logits = np.random.default_rng(0).normal(size=(3000, 2))
    traces = make_traces(request=np.arange(3000), accepted=np.full(3000, accepted), confidence_logits=logits)
    result = calibrate(traces, method)
    assert result.temperatures == (1.0, 1.0)
    assert [p.metrics.after.auc for p in result.positions] == [None, None]
    (left,) = [warning for warning in result.warnings if "left at 1" in warning]
    # 30 % of the rounds are held out.
    assert ("1 (2100 of 2100), 2 (2100 of 2100)" if accepted else "1 (0 of 2100), 2 (0 of 0)") in left


def test_cells_give_the_ece_of_the_rows() -> None:
    rng = np.random.default_rng(3)
    prefix = rng.beta(2, 1, 300_000)
    logits = rng.normal(1, 2, 300_000)
    survived = rng.random(300_000) < prefix / (1 + np.exp(-logits / 1.7))
    gathered = SurvivalCells.gather(prefix, logits, survived)
    exact = SurvivalCells(prefix, logits, np.ones(prefix.size), survived.astype(float))
    assert gathered.count.size < 70_000
    for temperature in (0.3, 1.0, 1.7, 4.0):
        assert gathered.ece(temperature, bins=20) == pytest.approx(exact.ece(temperature, bins=20), abs=5e-4)


def test_unknown_method_no_rounds_and_bad_options_are_refused(simulate) -> None:
    traces = simulate(40, (1.0,))
    with pytest.raises(CalibrationError, match="no calibration method"):
        fit_temperatures(traces, "platt")
    with pytest.raises(CalibrationError, match="no rounds"):
        calibrate(traces.select(slice(0, 0)))
    with pytest.raises(CalibrationError, match="hold-out share"):
        calibrate(traces, holdout=1.0)


@pytest.mark.parametrize("bins", [0, -1, 1001, 10**9, 10**20])
def test_so_many_bins_are_refused_by_every_function_that_takes_them(simulate, bins: int) -> None:
    traces = simulate(40, (1.0,))
    for refused in (
        lambda: calibrate(traces, bins=bins),
        lambda: fit_temperatures(traces, "nll", bins=bins),
        lambda: fit_temperatures(traces, "sts", bins=bins),
        lambda: measure(traces, (1.0,), rng=np.random.default_rng(0), bins=bins),
        lambda: expected_calibration_error([0.5], [1], bins=bins),
        lambda: ece_null([0.5], rng=np.random.default_rng(0), bins=bins),
    ):
        with pytest.raises(CalibrationError, match=f"measured in {bins} bins") as caught:
            refused()
        assert "1 to 1000" in caught.value.remedy


@pytest.mark.parametrize(
    ("low", "high", "points"),
    [
        (2.0, 1.0, 10),
        (1.0, 1.0, 10),
        (0.1, 10.0, 2),
        (0.1, 10.0, 10_001),
        (0.1, 10.0, 10**20),
        (1e-300, 1e300, 61),
        (0.0, 1.0, 61),
        (0.5, np.inf, 61),
        (np.nan, 10.0, 61),
    ],
)
def test_a_grid_that_cannot_be_searched_is_refused(low: float, high: float, points: int) -> None:
    with pytest.raises(CalibrationError, match="cannot be searched") as caught:
        TemperatureGrid(low, high, points)
    assert caught.value.remedy
    TemperatureGrid(1e-3, 1e3, 10_000)
