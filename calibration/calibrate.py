"""Traces in, calibration out."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dspark.calibration.artefact import Calibration, Position, SampledRounds
from dspark.calibration.combine import fingerprint, split_by_request
from dspark.calibration.ece import DEFAULT_BINS, check_bins
from dspark.calibration.errors import CalibrationError
from dspark.calibration.fit import fit_temperatures
from dspark.calibration.metrics import measure
from dspark.calibration.sampling import sampling_settings
from dspark.calibration.search import DEFAULT_GRID, TemperatureGrid
from dspark.calibration.traces import Traces
from dspark.calibration.verdict import verdict, warnings

DEFAULT_HOLDOUT = 0.3


def calibrate(
    traces: Traces,
    method: str = "sts",
    *,
    bins: int = DEFAULT_BINS,
    grid: TemperatureGrid = DEFAULT_GRID,
    holdout: float = DEFAULT_HOLDOUT,
    seed: int = 0,
    trace_names: Sequence[str] = (),
) -> Calibration:
    """Split by request, fit on one part, measure on the other.

    `trace_names` is only recorded. With one request, or a holdout of 0, the fitted rounds are measured, with a warning.

    Raises:
        CalibrationError: no rounds, no such method, or an option outside what it may be.
    """
    if len(traces) == 0:
        raise CalibrationError("there are no rounds to calibrate on", "Record traces of some requests first.")
    check_bins(bins)
    rng = np.random.default_rng(seed)
    fit_part, held_out = split_by_request(traces, holdout=holdout, rng=rng)
    fits = fit_temperatures(fit_part, method, bins=bins, grid=grid)
    temperatures = tuple(fit.temperature for fit in fits)
    metrics = measure(held_out if len(held_out) else fit_part, temperatures, rng=rng, bins=bins)
    return Calibration(
        temperatures=temperatures,
        verdict=verdict(fits, metrics, held_out=len(held_out) > 0),
        warnings=tuple(warnings(fit_part, held_out, fits, metrics, grid)),
        provenance=traces.provenance,
        sampling=sampling_settings(traces),
        method=method,
        bins=bins,
        grid=grid,
        holdout=holdout,
        seed=seed,
        fitted_on=_sampled_rounds(fit_part),
        held_out=_sampled_rounds(held_out),
        trace_names=tuple(trace_names),
        trace_fingerprint=fingerprint(traces),
        positions=tuple(Position(fit, metric) for fit, metric in zip(fits, metrics, strict=True)),
    )


def _sampled_rounds(traces: Traces) -> SampledRounds:
    def names(column: str) -> tuple[str, ...]:
        categories = getattr(traces, column)
        return tuple(categories.names[i] for i in np.unique(categories.codes) if categories.names[i])

    return SampledRounds(
        rounds=len(traces),
        requests=int(np.unique(traces.request).size),
        requests_known=traces.requests_known,
        policies=names("policy"),
        datasets=names("dataset"),
    )
