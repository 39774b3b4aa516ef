"""Under what the numbers of a report came about."""

from __future__ import annotations

import platform
from collections.abc import Mapping, Sequence
from typing import Any

from dspark.engine.jobs.manifest import package_version
from dspark.engine.report.run import Run
from dspark.engine.wording import name_as_text

_LIBRARIES = ("dspark", "numpy", "scipy", "scikit-learn", "matplotlib")
# What is taken over from the manifests of a profile and of a decoded file.
_OF_PROFILE = ("torch", "triton", "driver", "git_revision", "repeats", "spread")
_OF_DECODE = ("device_name", "torch", "triton", "driver", "git_revision")


def manifest(runs: Sequence[Run], *, seed: int) -> dict[str, Any]:
    """What made the report, and what made each run's artefacts."""
    report = {"seed": seed, "python": platform.python_version()}
    return {**report, **{name: package_version(name) for name in _LIBRARIES}, "runs": [_run_facts(run) for run in runs]}


def fact_rows(document: Mapping[str, Any]) -> list[tuple[str, str]]:
    """The manifest as lines of a table."""
    rows = [
        ("report", ", ".join(f"{name} {document[name]}" for name in ("python", *_LIBRARIES))),
        ("seed of the report", str(document["seed"])),
    ]
    for run in document["runs"]:
        prefix = f"{run['run']}: " if len(document["runs"]) > 1 else ""
        rows += [(prefix + name, _shown(value)) for name, value in run.items() if name != "run" and value]
    return rows


def _run_facts(run: Run) -> dict[str, Any]:
    facts: dict[str, Any] = {"run": run.name, "folder": name_as_text(run.folder), "artefacts": list(run.artefacts)}
    if run.profile is not None:
        conditions, drafter = run.profile.conditions, run.profile.conditions.drafter
        facts["target"] = conditions.target.name
        facts["drafter"] = None if drafter is None else drafter.name
        measured_on = {"device": conditions.device_name, "dtype": conditions.dtype, "runner": conditions.runner}
        facts["profile"] = measured_on | _picked(run.profile.manifest, _OF_PROFILE)
    if run.calibration is not None:
        calibration = run.calibration
        facts["calibration"] = {
            "method": calibration.method,
            "bins": calibration.bins,
            "seed": calibration.seed,
            "rounds fitted on": calibration.fitted_on.rounds,
            "rounds held out": calibration.held_out.rounds,
            "traces": calibration.trace_fingerprint,
        }
    if run.traces is not None:
        provenance = run.traces.provenance
        facts["target"] = facts.get("target") or provenance.target
        facts["drafter"] = facts.get("drafter") or provenance.drafter
        facts["traces"] = {"rounds": len(run.traces), "acceptance": provenance.acceptance}
    if run.decode is not None:
        facts["decode"] = _picked(run.decode.get("manifest"), _OF_DECODE)
    return facts


def _picked(made: Any, keys: Sequence[str]) -> dict[str, Any]:
    """What a manifest says under `keys`, if it is one."""
    return {key: made[key] for key in keys if made.get(key) is not None} if isinstance(made, Mapping) else {}


def _shown(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(
            f"{key.replace('_', ' ')} {_shown(entry)}" for key, entry in value.items() if entry is not None
        )
    if isinstance(value, list):
        return ", ".join(map(str, value))
    return f"{value:.3g}" if isinstance(value, float) else str(value)
