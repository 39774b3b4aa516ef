"""`calibration.json`: temperatures, what they were fitted on, and what they are worth."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np

from dspark.calibration.ece import MOST_BINS
from dspark.calibration.errors import CalibrationError
from dspark.calibration.fit import METHODS, PositionFit
from dspark.calibration.metrics import PositionMetrics
from dspark.calibration.sampling import SamplingSettings
from dspark.calibration.search import TemperatureGrid
from dspark.calibration.traces import Provenance
from dspark.profiles.typed_json import RepeatedKey, member, parse, refuse, typed
from dspark.profiles.whole_file import whole_file

FORMAT = "dspark-calibration"
VERSION = 1
# Keys of the document that are no field.
_BESIDE = ("format", "version", "gamma")
_SMALLEST, _LARGEST = (float(end) for end in (np.finfo(np.float32).tiny, np.finfo(np.float32).max))


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
        """Draft positions, G."""
        return len(self.temperatures)


def calibration_to_dict(calibration: Calibration) -> dict[str, Any]:
    """The JSON document; numbers that are not defined are None."""
    document = {"format": FORMAT, "version": VERSION, "gamma": calibration.gamma, **asdict(calibration)}
    return {key: _strict(value) for key, value in document.items()}


def calibration_from_dict(document: Any, *, source: str = "The calibration") -> Calibration:
    """The reverse.

    Raises:
        CalibrationError: it is no calibration of this version, or holds what no fit gives.
    """
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise CalibrationError(f"{source} is no calibration: it has no format `{FORMAT}`", "Run `dspark calibrate`.")
    if document.get("version") != VERSION:
        raise CalibrationError(
            f"{source} has version {document.get('version')!r} of the format; this dspark reads {VERSION}",
            "Run `dspark calibrate` again.",
        )
    try:
        content = {name: value for name, value in document.items() if name not in _BESIDE}
        calibration: Calibration = typed(Calibration, content, "")
        if not calibration.gamma == len(calibration.positions) == member(document, "gamma", int) > 0:
            raise ValueError("`gamma`, `temperatures` and `positions` have different lengths")
        _check_ranges(calibration)
    except ValueError as error:
        raise CalibrationError(f"{source} is damaged: {error}", "Run `dspark calibrate` again.") from None
    return calibration


def save_calibration(calibration: Calibration, path: Path) -> None:
    """Write strict JSON; the file appears whole or not at all.

    Raises:
        CalibrationError: the place cannot be written.
    """
    text = json.dumps(calibration_to_dict(calibration), indent=2, ensure_ascii=False, allow_nan=False)
    try:
        with whole_file(path) as unfinished:
            # The replacement of what UTF-8 cannot spell, from a path of other bytes, is its escape in JSON.
            unfinished.write_text(text + "\n", encoding="utf-8", errors="backslashreplace")
    except OSError as error:
        raise CalibrationError(
            f"{path} cannot be written: {error.strerror or error}", "Choose another place."
        ) from None


def load_calibration(path: Path) -> Calibration:
    """Read what `save_calibration` wrote.

    Raises:
        CalibrationError: the file is missing or no calibration.
    """
    try:
        document = parse(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise CalibrationError(f"{path} cannot be read: {error.strerror or error}", "Run `dspark calibrate`.") from None
    except RepeatedKey as error:
        raise CalibrationError(f"{path} is damaged: {error}", "Run `dspark calibrate` again.") from None
    except ValueError:
        raise CalibrationError(f"{path} is not strict JSON", "Run `dspark calibrate` again.") from None
    return calibration_from_dict(document, source=str(path))


def _check_ranges(calibration: Calibration) -> None:
    """Refuse what `calibrate` cannot have written.

    Raises:
        ValueError: a value is out of range; the sentence has its place.
    """
    for index, temperature in enumerate(calibration.temperatures):
        # Logits are divided by it in fp32, where it must be neither 0 nor infinite.
        if not _SMALLEST <= temperature <= _LARGEST:
            refuse(f"temperatures[{index}]", temperature, "a positive number of fp32")
    if calibration.method not in METHODS:
        refuse("method", calibration.method, f"one of {', '.join(METHODS)}")
    if not 1 <= calibration.bins <= MOST_BINS:
        refuse("bins", calibration.bins, f"a whole number from 1 to {MOST_BINS}")
    if not 0 <= calibration.holdout < 1:
        refuse("holdout", calibration.holdout, "a share from 0 to below 1")
    if calibration.seed < 0:
        refuse("seed", calibration.seed, "a whole number from 0 on")
    if not calibration.sampling:
        refuse("sampling", [], "a list of at least one setting")
    for name, fewest in (("fitted_on", 1), ("held_out", 0)):
        sampled: SampledRounds = getattr(calibration, name)
        for count in ("rounds", "requests"):
            if getattr(sampled, count) < fewest:
                refuse(f"{name}.{count}", getattr(sampled, count), f"a whole number from {fewest} on")
    for index, position in enumerate(calibration.positions):
        for when in ("before", "after"):
            bins = getattr(position.metrics, when).reliability
            if bins is not None and {len(getattr(bins, column.name)) for column in fields(bins)} != {calibration.bins}:
                raise ValueError(
                    f"`positions[{index}].metrics.{when}.reliability` does not have `bins` = {calibration.bins} bins"
                )


def _strict(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _strict(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_strict(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
