"""What another engine reads of a profile and a calibration, and what it must be told to use it."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dspark.engine.errors import ArtefactError, UsageError

if TYPE_CHECKING:
    from dspark.calibration import Calibration
    from dspark.profiles import Profile

ENGINES = ("sglang", "tensorrt-llm", "vllm", "deepinfer")

PROFILE_MISSING = "Run `dspark profile` for the step costs."
CALIBRATION_MISSING = "Run `dspark calibrate` for the temperatures."


@dataclass(frozen=True, slots=True)
class Source:
    """What is exported: whatever of the two there is, and the scope of the times."""

    profile: Profile | None
    calibration: Calibration | None
    scope: str  # "round" or "target"

    @property
    def sampled(self) -> bool:
        """Is verification timed at temperature 1: it is if the calibration is for sampling alone."""
        settings = () if self.calibration is None else self.calibration.sampling
        return bool(settings) and all((setting.temperature or 0) > 0 for setting in settings)


@dataclass(slots=True)
class Export:
    """Files by name, and the settings under which the engine uses them; `{name}` in a setting stands for a path."""

    files: dict[str, str] = field(default_factory=dict)
    settings: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def export_for(engine: str, source: Source) -> Export:
    """The files of one engine; what cannot be made for want of an input is left out, and a note says so.

    Raises:
        ArtefactError: the inputs are of different pairs.
        UsageError: what there is gives this engine nothing.
        ProfileError: the profile does not cover what the engine reads.
    """
    notes = _check_pair(source)
    export = _EXPORTERS[engine](source)
    export.notes = notes + export.notes
    if not export.files:
        raise UsageError(f"there is nothing to export for {engine}", " ".join(export.notes))
    if source.profile is not None:
        export.notes.append(_about_times(engine, source, source.profile))
    return export


def save(export: Export, folder: Path) -> list[Path]:
    """Write the files into `folder`, each whole or not at all.

    Raises:
        OSError: one could not be written.
    """
    from dspark.engine.jobs.atomic_file import replaced

    paths = []
    for name, text in export.files.items():
        path = folder / name
        with replaced(path) as writer:
            writer.write(text.encode("utf-8"))
        paths.append(path)
    return paths


def _check_pair(source: Source) -> list[str]:
    """Refuse a profile and a calibration of different pairs; warn where that cannot be told."""
    profile, calibration = source.profile, source.calibration
    if profile is None or calibration is None:
        return []
    gamma = profile.curve.gamma
    if gamma and gamma != calibration.gamma:
        raise ArtefactError(
            f"the profile is for blocks of {gamma} drafted tokens and the calibration for {calibration.gamma}",
            "Profile and calibrate the same drafter.",
        )
    recorded = calibration.provenance
    pairs = (
        ("target", profile.conditions.target.fingerprint, recorded.target_fingerprint),
        (
            "drafter",
            None if profile.conditions.drafter is None else profile.conditions.drafter.fingerprint,
            recorded.drafter_fingerprint,
        ),
    )
    notes = []
    for role, profiled, calibrated in pairs:
        if profiled is None or calibrated is None:
            notes.append(f"Whether profile and calibration are of one {role} cannot be told: one does not record it.")
        elif profiled != calibrated:
            raise ArtefactError(
                f"the profile and the calibration are of different {role}s", f"Profile and calibrate the same {role}."
            )
    return notes


def _sglang(source: Source) -> Export:
    from dspark.profiles.export import sglang_step_table

    export = Export(settings=["SGLANG_RAGGED_VERIFY_MODE=compact  (with `static` neither file has an effect)"])
    if source.profile is not None:
        table = sglang_step_table(source.profile.curve, scope=source.scope, sampled=source.sampled)
        export.files["sglang.sps.json"] = _json(table)
        export.settings.append("--speculative-dspark-sps-table-path {sglang.sps.json}")
    _add_temperatures(export, source, "sglang.sts.json", "--speculative-dspark-confidence-sts-path {sglang.sts.json}")
    return _with_gaps(export, source)


def _tensorrt_llm(source: Source) -> Export:
    from dspark.profiles.export import tensorrt_llm_cost_table

    export = Export()
    if source.profile is not None:
        table = tensorrt_llm_cost_table(source.profile.curve, scope=source.scope, sampled=source.sampled)
        export.files["tensorrt-llm.cost.json"] = _json(table)
        export.settings.append("confidence_cost_table_path: {tensorrt-llm.cost.json}")
    _add_temperatures(export, source, "tensorrt-llm.sts.json", "confidence_calibration_path: {tensorrt-llm.sts.json}")
    if export.settings:
        export.settings.insert(0, "in the speculative configuration:")
    return _with_gaps(export, source)


def _vllm(source: Source) -> Export:
    from dspark.calibration.export import mean_survival
    from dspark.profiles.draft_lengths import best_lengths

    profile, calibration = source.profile, source.calibration
    if profile is None or calibration is None:
        return _with_gaps(Export(), source)
    ranges = best_lengths(profile.curve, mean_survival(calibration), scope=source.scope, sampled=source.sampled)
    drafter = profile.conditions.drafter
    document = {
        "method": "dspark",
        "model": None if drafter is None else drafter.name,
        "num_speculative_tokens": calibration.gamma,
        "num_speculative_tokens_per_batch_size": [[r.first, r.last, r.length] for r in ranges],
    }
    return Export(
        files={"vllm.speculative.json": _json(document)},
        settings=['--speculative-config "$(cat {vllm.speculative.json})"'],
        notes=[
            "vLLM reads no temperatures: they only went into the draft lengths, which data parallelism ignores.",
            "`model` is the drafter as it was profiled: give vLLM its path or hub id.",
        ],
    )


def _deepinfer(source: Source) -> Export:
    from dspark.calibration.export import temperature_tuple
    from dspark.profiles.export import deepinfer_perf_curve

    lines = []
    if source.profile is not None:
        curve = deepinfer_perf_curve(source.profile.curve, scope=source.scope, sampled=source.sampled)
        lines.append(f"DEEPINFER_MTP_DECODE_PERF_CURVE='{curve!r}'")
    if source.calibration is not None:
        temperatures = temperature_tuple(source.calibration.temperatures)
        lines.append(f"DEEPINFER_DFLASH_CONFIDENCE_HEAD_TEMPERATURE='{temperatures}'")
    if not lines:
        return _with_gaps(Export(), source)
    export = Export(
        files={"deepinfer.env": "".join(f"{line}\n" for line in lines)},
        settings=["set -a; . {deepinfer.env}; set +a  (before the engine starts)"],
    )
    return _with_gaps(export, source)


_EXPORTERS: dict[str, Callable[[Source], Export]] = {
    "sglang": _sglang,
    "tensorrt-llm": _tensorrt_llm,
    "vllm": _vllm,
    "deepinfer": _deepinfer,
}


def _add_temperatures(export: Export, source: Source, name: str, setting: str) -> None:
    from dspark.calibration.export import sts_document

    if source.calibration is not None:
        export.files[name] = _json(sts_document(source.calibration))
        export.settings.append(setting)


def _with_gaps(export: Export, source: Source) -> Export:
    if source.profile is None:
        export.notes.append(f"There is no profile. {PROFILE_MISSING}")
    if source.calibration is None:
        export.notes.append(f"There is no calibration. {CALIBRATION_MISSING}")
    return export


def _about_times(engine: str, source: Source, profile: Profile) -> str:
    curve, conditions = profile.curve, profile.conditions
    if source.scope == "target":
        what = "Times are of the target's forward alone"
    else:
        parts = "target, verification" if curve.draft is None else "target, draft, verification"
        what = f"Times are of the whole round ({parts} at temperature {1 if source.sampled else 0})"
    shape = "" if engine in ("tensorrt-llm", "vllm") else ", full blocks"
    return (
        f"{what}, behind {curve.reference_context_tokens:,} tokens of context a request{shape}, "
        f"on {conditions.device_name} in {conditions.dtype}, up to {curve.max_batch_tokens:,} packed tokens."
    )


def _json(document: dict[str, Any]) -> str:
    return json.dumps(document, indent=2, ensure_ascii=False, allow_nan=False) + "\n"
