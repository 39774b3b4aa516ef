"""Loads the pair of models that a configuration names."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from dspark.engine.config import EngineConfig
from dspark.engine.models.aliases import NGRAM_DRAFTER, NO_DRAFTER, drafter_for
from dspark.engine.models.drafter import Drafter
from dspark.engine.models.dummy import dummy_drafter, dummy_target
from dspark.engine.models.fingerprint import checkpoint_fingerprint
from dspark.engine.models.resolve import resolve_drafter, resolve_target
from dspark.engine.models.target import Target
from dspark.engine.ngram.drafter import NgramDrafter

if TYPE_CHECKING:
    from dspark.engine.proposals import DraftModel

_IN_MEMORY = "in memory"


@dataclass(slots=True)
class ModelPair:
    """Target, drafter if there is one, and what they are known by."""

    target: Target
    drafter: DraftModel | NgramDrafter | None
    fingerprints: dict[str, str] = field(default_factory=dict)


def load_pair(
    config: EngineConfig,
    *,
    device: torch.device,
    dtype: str,
    target: Target | None = None,
    drafter: DraftModel | NgramDrafter | None = None,
    drafts: bool = True,
) -> ModelPair:
    """What `config` names; models in memory take the place of those. Without `drafts` there is no drafter.

    Raises:
        CheckpointError: target or drafter cannot be loaded, or do not belong together.
    """
    fingerprints = {"target": _IN_MEMORY, "drafter": _IN_MEMORY}
    drafter_name = drafter_for(config.target, config.drafter)
    if target is not None:
        # What goes with the target that the configuration names says nothing of this one.
        drafter_name = config.drafter or NO_DRAFTER
    elif config.load_format == "dummy":
        target = dummy_target(config.target, device=device, dtype=dtype)
        fingerprints["target"] = f"random weights of {config.target}"
    else:
        folder = resolve_target(config.target)
        target = Target.load(folder, device=device, dtype=dtype)
        fingerprints["target"] = checkpoint_fingerprint(folder)
    if not drafts:
        return ModelPair(target, None, {**fingerprints, "drafter": NO_DRAFTER})
    if drafter is None and drafter_name == NGRAM_DRAFTER:
        drafter = NgramDrafter()
    if drafter is not None:
        if isinstance(drafter, Drafter):
            drafter.config.check_target(target.config)
        if isinstance(drafter, NgramDrafter):
            fingerprints["drafter"] = drafter.fingerprint
    elif config.load_format == "dummy":
        drafter = dummy_drafter(config.drafter, target=target, device=device, dtype=dtype)
        fingerprints["drafter"] = f"random weights for {config.target}"
    else:
        drafter_folder = resolve_drafter(drafter_name)
        if drafter_folder is None:
            fingerprints["drafter"] = NO_DRAFTER
        else:
            assert isinstance(drafter_folder, Path), "other drafters are made already"
            drafter = Drafter.load(drafter_folder, target=target, device=device, dtype=dtype)
            fingerprints["drafter"] = checkpoint_fingerprint(drafter_folder)
    return ModelPair(target, drafter, fingerprints)
