"""Loads the pair of models that a configuration names."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch

from dspark.engine.config import EngineConfig
from dspark.engine.models.drafter import Drafter
from dspark.engine.models.dummy import dummy_drafter, dummy_target
from dspark.engine.models.fingerprint import checkpoint_fingerprint
from dspark.engine.models.resolve import resolve_drafter, resolve_target
from dspark.engine.models.target import Target

if TYPE_CHECKING:
    from dspark.engine.proposals import DraftModel


@dataclass(slots=True)
class LoadedModels:
    """Target, drafter if there is one, and what they are known by."""

    target: Target
    drafter: DraftModel | None
    fingerprints: dict[str, str] = field(default_factory=dict)


def load_models(
    config: EngineConfig, *, device: torch.device, dtype: str, drafter: DraftModel | None = None
) -> LoadedModels:
    """What `config` names; a `drafter` in memory takes the place of the one it names.

    Raises:
        CheckpointError: target or drafter cannot be loaded, or do not belong together.
    """
    wants_drafter = config.policy != "none" and drafter is None
    fingerprints = {"target": "in memory", "drafter": "in memory"}
    if config.load_format == "dummy":
        target = dummy_target(config.target, device=device, dtype=dtype)
        fingerprints["target"] = f"random weights of {config.target}"
        if wants_drafter:
            drafter = dummy_drafter(config.drafter, target=target, device=device, dtype=dtype)
            fingerprints["drafter"] = f"random weights for {config.target}"
        return LoadedModels(target, drafter, fingerprints)
    folder = resolve_target(config.target)
    target = Target.load(folder, device=device, dtype=dtype)
    fingerprints["target"] = checkpoint_fingerprint(folder)
    drafter_folder = resolve_drafter(config.drafter) if config.policy != "none" else None
    if drafter is None and drafter_folder is not None:
        drafter = Drafter.load(drafter_folder, target=target, device=device, dtype=dtype)
        fingerprints["drafter"] = checkpoint_fingerprint(drafter_folder)
    return LoadedModels(target, drafter, fingerprints)
