"""What can be refused of a configuration before any weights are read."""

from __future__ import annotations

from pathlib import Path

from dspark.engine.config import EngineConfig
from dspark.engine.draft_top_k import check_draft_top_k
from dspark.engine.models.drafter_config import DrafterConfig
from dspark.engine.models.model_config import ModelConfig
from dspark.engine.ngram.drafter import NgramDrafter
from dspark.engine.scheduler.policies import parse_policy


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


def block_size_of(drafter: Path | NgramDrafter) -> int:
    """Tokens that a drafter proposes at a time, at most.

    Raises:
        CheckpointError: its config.json cannot be read, or is not supported.
    """
    return DrafterConfig.from_folder(drafter).block_size if isinstance(drafter, Path) else drafter.block_size
