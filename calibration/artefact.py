"""`calibration.json`: temperatures, what they were fitted on, and what they are worth."""

from __future__ import annotations

import json
import math
import os
from contextlib import suppress
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, NoReturn

from dspark.calibration.ece import EceNull, ReliabilityBins
from dspark.calibration.errors import CalibrationError
from dspark.calibration.fit import PositionFit
from dspark.calibration.metrics import PositionMetrics, PredictionMetrics, Proportion
from dspark.calibration.sampling import SamplingSettings
from dspark.calibration.search import TemperatureGrid
from dspark.calibration.traces import Provenance

FORMAT = "dspark-calibration"
VERSION = 1


@dataclass(frozen=True, slots=True)
class SampledRounds:
    """Where rounds came from."""

    rounds: int
    requests: int
    requests_known: bool
    policies: tuple[str, ...]
    datasets: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Position:
    """One draft position: its fit, and its metrics on held-out rounds (on the fitted ones if none were held out)."""

    fit: PositionFit
    metrics: PositionMetrics


@dataclass(frozen=True, slots=True)
class Calibration:
    """One temperature a draft position, and everything a reader needs to trust it or not."""

    temperatures: tuple[float, ...]  # [G]
    verdict: str
    warnings: tuple[str, ...]
    provenance: Provenance
    sampling: tuple[SamplingSettings, ...]
    method: str
    bins: int
    grid: TemperatureGrid
    holdout: float
    seed: int
    fitted_on: SampledRounds
    held_out: SampledRounds
    trace_names: tuple[str, ...]
    trace_fingerprint: str
    positions: tuple[Position, ...]  # [G]

    @property
    def gamma(self) -> int:
        return len(self.temperatures)


def calibration_to_dict(calibration: Calibration) -> dict[str, Any]:
    """The JSON document; numbers that are not defined are None."""
    document = {"format": FORMAT, "version": VERSION, "gamma": calibration.gamma, **asdict(calibration)}
    return {key: _strict(value) for key, value in document.items()}


def calibration_from_dict(document: Any, *, source: str = "The calibration") -> Calibration:
    """The reverse.

    Raises:
        CalibrationError: it is no calibration of this version, or its temperatures are no positive numbers.
    """
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise CalibrationError(f"{source} is no calibration: it has no format `{FORMAT}`", "Run `dspark calibrate`.")
    if document.get("version") != VERSION:
        raise CalibrationError(
            f"{source} has version {document.get('version')!r} of the format; this dspark reads {VERSION}",
            "Run `dspark calibrate` again.",
        )
    try:
        values = {field.name: document[field.name] for field in fields(Calibration)}
        values["temperatures"] = tuple(_temperature(t) for t in values["temperatures"])
        values["warnings"] = tuple(values["warnings"])
        values["provenance"] = Provenance(**values["provenance"])
        values["sampling"] = tuple(SamplingSettings(**s) for s in values["sampling"])
        values["grid"] = TemperatureGrid(**values["grid"])
        for part in ("fitted_on", "held_out"):
            texts = {name: tuple(values[part][name]) for name in ("policies", "datasets")}
            values[part] = SampledRounds(**{**values[part], **texts})
        values["trace_names"] = tuple(values["trace_names"])
        values["positions"] = tuple(_position(p) for p in values["positions"])
        if not len(values["temperatures"]) == len(values["positions"]) == document["gamma"] > 0:
            raise ValueError("gamma, temperatures and positions have different lengths")
        return Calibration(**values)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise CalibrationError(f"{source} is damaged: {error!s}", "Run `dspark calibrate` again.") from None


def save_calibration(calibration: Calibration, path: Path) -> None:
    """Write strict JSON; the file appears whole or not at all.

    Raises:
        CalibrationError: the place cannot be written.
    """
    text = json.dumps(calibration_to_dict(calibration), indent=2, ensure_ascii=False, allow_nan=False)
    unfinished = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        unfinished.write_text(text + "\n", encoding="utf-8")
        os.replace(unfinished, path)
    except OSError as error:
        raise CalibrationError(
            f"{path} cannot be written: {error.strerror or error}", "Choose another place."
        ) from None
    finally:
        # Nothing is left of it after a success, and where its folder is a file there never was anything.
        with suppress(OSError):
            unfinished.unlink(missing_ok=True)


def load_calibration(path: Path) -> Calibration:
    """Read what `save_calibration` wrote.

    Raises:
        CalibrationError: the file is missing or no calibration.
    """
    try:
        document = json.loads(path.read_text(encoding="utf-8"), parse_constant=_refuse_constant)
    except OSError as error:
        raise CalibrationError(f"{path} cannot be read: {error.strerror or error}", "Run `dspark calibrate`.") from None
    except (ValueError, RecursionError):
        raise CalibrationError(f"{path} is not strict JSON", "Run `dspark calibrate` again.") from None
    return calibration_from_dict(document, source=str(path))


def _position(document: dict[str, Any]) -> Position:
    metrics = dict(document["metrics"])
    for side in ("before", "after"):
        metrics[side] = _prediction_metrics(metrics[side])
    for share in ("survived", "accepted"):
        metrics[share] = Proportion(**metrics[share])
    return Position(fit=PositionFit(**document["fit"]), metrics=PositionMetrics(**metrics))


def _prediction_metrics(document: dict[str, Any]) -> PredictionMetrics:
    values = dict(document)
    if values["ece_null"] is not None:
        values["ece_null"] = EceNull(**values["ece_null"])
    if values["reliability"] is not None:
        values["reliability"] = ReliabilityBins(**{name: tuple(v) for name, v in values["reliability"].items()})
    return PredictionMetrics(**values)


def _temperature(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
        raise ValueError(f"a temperature is {value!r}, not a positive number")
    return float(value)


def _strict(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _strict(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_strict(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")
