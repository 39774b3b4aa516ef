"""Under what the numbers of a report came about."""

from __future__ import annotations

import platform
from collections.abc import Sequence
from importlib import metadata
from typing import Any

from dspark.engine.report.run import Run

_LIBRARIES = ("dspark", "numpy", "scipy", "scikit-learn", "matplotlib")


def manifest(runs: Sequence[Run], *, seed: int) -> dict[str, Any]:
    """What made the report, and what made each run's artefacts."""
    return {
        "seed": seed,
        "python": platform.python_version(),
        **{library: _version(library) for library in _LIBRARIES},
        "runs": [_run_facts(run) for run in runs],
    }


def fact_rows(document: dict[str, Any]) -> list[tuple[str, str]]:
    """The manifest as lines of a table."""
    rows = [("report", ", ".join(f"{library} {document[library]}" for library in ("python", *_LIBRARIES)))]
    rows.append(("seed of the report", str(document["seed"])))
    for run in document["runs"]:
        prefix = f"{run['run']}: " if len(document["runs"]) > 1 else ""
        for name, value in run.items():
            if name != "run" and value not in (None, "", []):
                shown = ", ".join(map(str, value)) if isinstance(value, list) else str(value)
                rows.append((f"{prefix}{name.replace('_', ' ')}", shown))
    return rows


def _run_facts(run: Run) -> dict[str, Any]:
    facts: dict[str, Any] = {"run": run.name, "folder": str(run.folder), "artefacts": list(run.artefacts)}
    if run.profile is not None:
        conditions, made = run.profile.conditions, run.profile.manifest
        drafter = conditions.drafter
        facts |= {
            "target": conditions.target.name,
            "drafter": None if drafter is None else drafter.name,
            "device": conditions.device_name,
            "dtype": conditions.dtype,
            "profiled_with": [
                f"{key} {made[key]}"
                for key in ("torch", "triton", "driver", "git_revision", "repeats", "spread")
                if made.get(key) is not None
            ],
        }
    if run.calibration is not None:
        calibration = run.calibration
        facts["calibration"] = [
            f"method {calibration.method}",
            f"{calibration.bins} bins",
            f"seed {calibration.seed}",
            f"{calibration.fitted_on.rounds:,} rounds fitted on",
            f"{calibration.held_out.rounds:,} held out",
            f"traces {calibration.trace_fingerprint}",
        ]
    if run.traces is not None:
        provenance = run.traces.provenance
        facts |= {
            "target": facts.get("target") or provenance.target,
            "drafter": facts.get("drafter") or provenance.drafter,
        }
        facts["acceptance"] = provenance.acceptance
        facts["rounds"] = f"{len(run.traces):,}"
    if run.decode is not None:
        made = run.decode.get("manifest") or {}
        facts["decoded_with"] = [
            f"{key} {made[key]}" for key in ("device_name", "torch", "git_revision") if made.get(key) is not None
        ]
    return facts


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None
