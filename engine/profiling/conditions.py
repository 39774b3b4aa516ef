"""What an engine shares, or does not, with the profile that it is to use."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from dspark.engine.device import choose_device, choose_dtype
from dspark.engine.jobs.manifest import device_name
from dspark.engine.models.aliases import drafter_for, shaped_drafter
from dspark.engine.models.drafter_config import DrafterConfig
from dspark.engine.models.model_config import ModelConfig
from dspark.engine.ngram.drafter import NgramDrafter
from dspark.profiles import Conditions, ModelShape

if TYPE_CHECKING:
    from dspark.engine.config import EngineConfig
    from dspark.engine.engine import Engine

# Say nothing about how long a forward takes.
_NOT_SHAPE = ("rms_norm_eps", "rope", "eos_token_ids", "dtype", "max_position_embeddings")


def engine_conditions(
    engine: Engine, *, runner: str, target_name: str | None = None, drafter_name: str | None = None
) -> Conditions:
    """Conditions of `engine`; the names are for the reader, by default those of its configuration."""
    fingerprint = engine.fingerprint()
    drafter = None
    if engine.gamma:
        described = engine.ngram or getattr(engine.drafter, "config", None)
        drafter = ModelShape(
            drafter_name or _drafter_name(engine),
            _known(fingerprint["drafter"]),
            _drafter_shape(described) if described is not None else {"block_size": engine.gamma},
        )
    target = ModelShape(
        target_name or engine.config.target, _known(fingerprint["target"]), _shape(engine.target.config)
    )
    return Conditions(
        target=target,
        drafter=drafter,
        dtype=engine.dtype,
        device=engine.device.type,
        device_name=device_name(engine.device.type) or "unknown",
        threads=torch.get_num_threads() if engine.device.type == "cpu" else None,
        runner=runner,
        page_size=engine.page_size,
        concurrency=engine.concurrency,
        draft_steps=engine.gamma,
        torch=torch.__version__,
    )


def configured_conditions(
    config: EngineConfig, target: Path, drafter: Path | NgramDrafter, *, recorded: Conditions, here: bool
) -> Conditions:
    """Conditions of an engine that is yet to be made, as far as its configuration and its models' files tell.

    What only an engine knows is as `recorded`, and unless the engine will run `here`, so are device and dtype.

    Raises:
        CheckpointError: a config.json cannot be read, or is not supported.
    """
    described = DrafterConfig.from_folder(drafter) if isinstance(drafter, Path) else drafter
    present = replace(
        recorded,
        target=ModelShape(config.target, None, _shape(ModelConfig.from_folder(target))),
        drafter=ModelShape(drafter_for(config.target, config.drafter), None, _drafter_shape(described)),
    )
    if not here:
        return present
    device = choose_device(config.device)
    dtype, name = choose_dtype(config.dtype, device), device_name(device.type) or "unknown"
    return replace(present, dtype=dtype, device=device.type, device_name=name)


def _drafter_name(engine: Engine) -> str:
    config = engine.config
    if config.load_format == "dummy" and config.drafter is None:
        return shaped_drafter(config.target)
    return drafter_for(config.target, config.drafter)


def _drafter_shape(drafter: DrafterConfig | NgramDrafter) -> dict[str, Any]:
    if isinstance(drafter, NgramDrafter):
        return {"block_size": drafter.block_size, "longest_match": drafter.longest_match}
    return (
        {"block_size": drafter.block_size}
        | _shape(drafter.backbone)
        | {
            "feature_layers": len(drafter.target_layer_ids),
            "markov_rank": drafter.markov_rank,
            "markov_head_type": drafter.markov_head_type or "none",
            "confidence_head": drafter.enable_confidence_head,
        }
    )


def _shape(config: ModelConfig) -> dict[str, Any]:
    return {key: value for key, value in asdict(config).items() if key not in _NOT_SHAPE}


def _known(fingerprint: str | int) -> str | None:
    text = str(fingerprint)
    return None if text in ("in memory", "none") or text.startswith("random weights") else text
