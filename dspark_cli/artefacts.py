"""What earlier commands left in the work directory, for those that decode."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from dspark.engine.errors import UsageError
from dspark.engine.jobs.workdir_names import CALIBRATION, PROFILE
from dspark.engine.models.aliases import NO_DRAFTER, drafter_for

if TYPE_CHECKING:
    from dspark.engine.config import EngineConfig


def add_artefacts(config: EngineConfig, workdir: Path) -> EngineConfig:
    """The configuration with the profile and the calibration that its policy reads, as far as they are there.

    Raises:
        UsageError: the policy plans by a profile, and there is none.
        ProfileError, CalibrationError: one cannot be read.
    """
    from dspark.engine.scheduler.policies import Planned, parse_policy

    profile, calibration = workdir / PROFILE, workdir / CALIBRATION
    policy = None if config.policy is None else parse_policy(config.policy, None)
    drafts = drafter_for(config.target, config.drafter) != NO_DRAFTER
    if drafts and (policy is None or isinstance(policy, Planned)) and os.path.lexists(profile):
        from dspark.profiles import load_profile

        config = replace(config, profile=load_profile(profile))
    elif isinstance(policy, Planned):
        raise UsageError(
            f"policy {config.policy} plans by a profile, and there is no {profile}",
            "Run `dspark profile` first, with the same --target, --drafter, --device, --dtype and --workdir.",
        )
    reads_confidence = policy is not None and not isinstance(policy, Planned) and policy.reads_confidence
    if drafts and (config.profile is not None or reads_confidence) and os.path.lexists(calibration):
        from dspark.calibration import load_calibration

        config = replace(config, calibration=load_calibration(calibration))
    return config


def used_artefacts(config: EngineConfig, workdir: Path) -> str | None:
    """A sentence about them, if there are any."""
    parts = []
    if config.profile is not None:
        parts.append(f"plans rounds by {workdir / PROFILE}")
    if config.calibration is not None:
        parts.append(f"corrects confidence by {workdir / CALIBRATION}")
    return f"This run {' and '.join(parts)}." if parts else None


def policy_reason(config: EngineConfig, workdir: Path) -> str:
    """Why a run with this configuration schedules verification as it does."""
    if config.profile is not None:
        return f"by {workdir / PROFILE}"
    if config.policy is not None:
        return "as asked"
    if drafter_for(config.target, config.drafter) == NO_DRAFTER:
        return "there is no drafter"
    return f"no {workdir / PROFILE}, so everything drafted is verified"
