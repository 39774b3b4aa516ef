"""An output that is already whole: is it what would be decoded now, and what did that run amount to."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dspark.engine.errors import UsageError
from dspark.engine.jobs import strict_json
from dspark.engine.jobs.run_header import differences
from dspark.engine.jobs.summary import DecodeSummary

if TYPE_CHECKING:
    from dspark.engine.config import EngineConfig
    from dspark.engine.jobs.decode_job import DecodeJob
    from dspark.engine.ngram.drafter import NgramDrafter

_AGAIN = "Resume with the settings of that run, or give --overwrite to decode again."


def finished_summary(job: DecodeJob, engine: Mapping[str, Any]) -> dict[str, Any]:
    """The totals that the finished run left in `job.metrics`.

    Args:
        engine: the part of an engine's fingerprint that is known.

    Raises:
        UsageError: the metrics are not there, or the output is not what `job` would give.
    """
    document = _read(job.metrics)
    run = document.get("run")
    totals = {name: document.get(name) for name in DecodeSummary(0).to_dict()}
    if not isinstance(run, dict) or not isinstance(run.get("engine"), dict) or None in totals.values():
        raise UsageError(
            f"{job.output} is finished, but {job.metrics} does not say by what run",
            "Give the --metrics file of that run, or --overwrite to decode again.",
        )
    # Of the engine only what is known now can be compared.
    found = {**run, "engine": {name: run["engine"].get(name) for name in engine}}
    different = differences(found, job.header(engine))
    if different:
        raise UsageError(f"{job.output} is finished, by a run that differs in {'; '.join(different)}", _AGAIN)
    with job.output.open("rb") as file:
        num_rows = sum(1 for _ in file)
    if num_rows != job.input.num_rows:
        raise UsageError(
            f"{job.output} has {num_rows} rows, the input has {job.input.num_rows}",
            "Give --overwrite to decode again, or another --output.",
        )
    return totals


def known_settings(config: EngineConfig, target: Path, drafter: Path | NgramDrafter | None) -> dict[str, Any]:
    """What the fingerprint of an engine with this configuration will say, as far as its files alone tell."""
    from dspark.engine.models.fingerprint import checkpoint_fingerprint
    from dspark.engine.ngram.drafter import NgramDrafter
    from dspark.engine.preflight import block_size_of
    from dspark.engine.scheduler.policies import default_policy, parse_policy

    policy = config.policy
    if drafter is None or (policy is not None and not parse_policy(policy, None).drafts):
        policy, drafter_print = policy or "none", "none"
    else:
        if policy is None:
            policy = default_policy(block_size_of(drafter), plans=config.profile is not None)
        drafter_print = drafter.fingerprint if isinstance(drafter, NgramDrafter) else checkpoint_fingerprint(drafter)
    known: dict[str, Any] = {
        "target": checkpoint_fingerprint(target),
        "drafter": drafter_print,
        "policy": policy,
        "acceptance": config.acceptance,
        "draft_top_k": config.draft_top_k,
        "seed": config.seed,
    }
    # "auto" is decided by the device, which takes torch to know.
    known |= {name: value for name, value in (("device", config.device), ("dtype", config.dtype)) if value != "auto"}
    return known


def _read(path: Path) -> dict[str, Any]:
    try:
        document = strict_json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return document if isinstance(document, dict) else {}
