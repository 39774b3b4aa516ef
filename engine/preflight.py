"""What can be refused of a configuration before any weights are read."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING

from dspark.engine.config import EngineConfig
from dspark.engine.draft_top_k import check_draft_top_k
from dspark.engine.errors import ArtefactError
from dspark.engine.models.aliases import drafter_for
from dspark.engine.models.drafter_config import DrafterConfig
from dspark.engine.models.model_config import ModelConfig
from dspark.engine.ngram.drafter import NgramDrafter
from dspark.engine.scheduler.policies import parse_policy

if TYPE_CHECKING:
    from dspark.calibration import Provenance


def check_device(config: EngineConfig) -> None:
    """Refuse a device that is not here, or a number format that it does not run. Loads torch.

    Raises:
        UsageError: with the reason.
    """
    from dspark.engine.device import choose_device, choose_dtype
    from dspark.engine.models.layers import WeightFormat

    device = choose_device(config.device)
    WeightFormat.of(choose_dtype(config.dtype, device), device)


def check_models(config: EngineConfig, target: Path, drafter: Path | NgramDrafter | None) -> None:
    """Refuse what the models' config.json files already rule out. Loads no torch.

    Args:
        target, drafter: local folders, or a drafter without one; no drafter is None.

    Raises:
        CheckpointError: a model is not supported, or the two do not belong together.
        UsageError: the policy asks for more than the drafter proposes, or a draft distribution that there is none of is
            to be cut.
    """
    check_draft_top_k(config, drafter)
    target_config = ModelConfig.from_folder(target)
    if isinstance(drafter, Path):
        DrafterConfig.from_folder(drafter).check_target(target_config)
    if config.policy is not None:
        parse_policy(config.policy, 0 if drafter is None else block_size_of(drafter))


def check_artefacts(
    config: EngineConfig, target: Path, drafter: Path | NgramDrafter | None, *, here: bool = True
) -> None:
    """Refuse a profile and a calibration that do not belong to what the models' files and the options say. Loads torch.

    Args:
        target, drafter: as for `check_models`, which has passed.
        here: the engine runs on this machine; another's device and number format show when it loads there.

    Raises:
        ArtefactError: with everything that is wrong with either, and each way out.
        ProfileError, CalibrationError: one cannot be read.
    """
    if drafter is None or (config.profile is None and config.calibration is None):
        return
    reasons, commands = [], []
    if config.profile is not None:
        from dspark.engine.artefacts import loaded_profile, too_many_requests
        from dspark.engine.profiling.conditions import configured_conditions
        from dspark.profiles import contradictions

        profile = loaded_profile(config.profile)
        recorded, most = profile.conditions, profile.curve.max_requests
        found = contradictions(recorded, configured_conditions(config, target, drafter, recorded=recorded, here=here))
        if config.concurrency is not None and config.concurrency > most:
            found.append(too_many_requests(config.concurrency, most))
        if found:
            commands.append(_again("profile", config, concurrency=config.concurrency))
        reasons += found
    if config.calibration is not None:
        from dspark.calibration import mismatches
        from dspark.engine.artefacts import loaded_calibration

        present = _provenance(config, target, drafter)
        found = mismatches(loaded_calibration(config.calibration), present, gamma=block_size_of(drafter))
        if found:
            commands.append(_again("calibrate", config, acceptance=config.acceptance))
        reasons += found
    if reasons:
        raise ArtefactError(
            "; ".join(reasons),
            "Use a policy that reads neither profile nor calibration (--policy fixed:K), or another work directory "
            f"(--workdir NEW) and measure there ({', '.join(commands)}).",
        )


def _provenance(config: EngineConfig, target: Path, drafter: Path | NgramDrafter) -> Provenance:
    from dspark.calibration import Provenance
    from dspark.engine.models.fingerprint import checkpoint_fingerprint

    return Provenance(
        target=config.target,
        drafter=drafter_for(config.target, config.drafter),
        acceptance=config.acceptance,
        target_fingerprint=checkpoint_fingerprint(target),
        drafter_fingerprint=checkpoint_fingerprint(drafter) if isinstance(drafter, Path) else drafter.fingerprint,
    )


def _again(command: str, config: EngineConfig, **settings: str | int | None) -> str:
    """The command that measures with this configuration."""
    usual = EngineConfig()
    wanted = {name: getattr(config, name) for name in ("target", "drafter", "device", "dtype")} | settings
    words = ["dspark", command]
    for name, value in wanted.items():
        if value != getattr(usual, name):
            words += [f"--{name}", str(value)]
    # Beside the files of another pair these commands would be refused.
    return f"`{shlex.join([*words, '--workdir', 'NEW'])}`"


def block_size_of(drafter: Path | NgramDrafter) -> int:
    """Tokens that a drafter proposes at a time, at most.

    Raises:
        CheckpointError: its config.json cannot be read, or is not supported.
    """
    return DrafterConfig.from_folder(drafter).block_size if isinstance(drafter, Path) else drafter.block_size
