"""Confidence calibration: traces of decode rounds in, one temperature a draft position out.

Pure functions on arrays: no model, no device. pandas, pyarrow, scikit-learn, scipy and torch are imported by the
functions that need them.
"""

from dspark.calibration.artefact import (
    Calibration,
    Position,
    SampledRounds,
    calibration_from_dict,
    calibration_to_dict,
    load_calibration,
    save_calibration,
)
from dspark.calibration.calibrate import DEFAULT_HOLDOUT, calibrate
from dspark.calibration.combine import concatenate, fingerprint, split_by_request
from dspark.calibration.confidence import confidence, survival
from dspark.calibration.ece import (
    DEFAULT_BINS,
    MOST_BINS,
    EceNull,
    ReliabilityBins,
    ece_null,
    expected_calibration_error,
    reliability_bins,
)
from dspark.calibration.errors import CalibrationError
from dspark.calibration.fit import METHODS, PositionFit, fit_temperatures
from dspark.calibration.match import check_calibration, check_sampling, mismatches
from dspark.calibration.metrics import (
    PositionMetrics,
    PredictionMetrics,
    Proportion,
    acceptance_by_position,
    measure,
    prediction_metrics,
    wilson_interval,
)
from dspark.calibration.sampling import SamplingSettings, sampling_settings
from dspark.calibration.search import TemperatureGrid
from dspark.calibration.trace_files import frame_to_traces, read_traces, traces_to_frame, write_traces
from dspark.calibration.traces import SIGNALS, Categories, Provenance, Traces, make_traces

__all__ = [
    "DEFAULT_BINS",
    "DEFAULT_HOLDOUT",
    "METHODS",
    "MOST_BINS",
    "SIGNALS",
    "Calibration",
    "CalibrationError",
    "Categories",
    "EceNull",
    "Position",
    "PositionFit",
    "PositionMetrics",
    "PredictionMetrics",
    "Proportion",
    "Provenance",
    "ReliabilityBins",
    "SampledRounds",
    "SamplingSettings",
    "TemperatureGrid",
    "Traces",
    "acceptance_by_position",
    "calibrate",
    "calibration_from_dict",
    "calibration_to_dict",
    "check_calibration",
    "check_sampling",
    "concatenate",
    "confidence",
    "ece_null",
    "expected_calibration_error",
    "fingerprint",
    "fit_temperatures",
    "frame_to_traces",
    "load_calibration",
    "make_traces",
    "measure",
    "mismatches",
    "prediction_metrics",
    "read_traces",
    "reliability_bins",
    "sampling_settings",
    "save_calibration",
    "split_by_request",
    "survival",
    "traces_to_frame",
    "wilson_interval",
    "write_traces",
]
