"""What can be refused of a configuration before any weights are read."""

from __future__ import annotations

from pathlib import Path

from dspark.engine.config import EngineConfig
from dspark.engine.models.drafter_config import DrafterConfig
from dspark.engine.models.model_config import ModelConfig
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


def check_models(config: EngineConfig, target: Path, drafter: Path | None) -> None:
    """Refuse what the models' config.json files already rule out. Loads no torch.

    Args:
        target, drafter: local folders; no drafter is None.

    Raises:
        CheckpointError: a model is not supported, or the two do not belong together.
        UsageError: the policy asks for more than the drafter proposes.
    """
    target_config = ModelConfig.from_folder(target)
    block_size = 0
    if drafter is not None:
        drafter_config = DrafterConfig.from_folder(drafter)
        drafter_config.check_target(target_config)
        block_size = drafter_config.block_size
    if config.policy is not None:
        parse_policy(config.policy, block_size)
