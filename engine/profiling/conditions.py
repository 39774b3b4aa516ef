"""What an engine shares, or does not, with the profile that it is to use."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import torch

from dspark.engine.jobs.manifest import device_name
from dspark.engine.models.aliases import drafter_for
from dspark.profiles import Conditions, ModelShape

if TYPE_CHECKING:
    from dspark.engine.engine import Engine
    from dspark.engine.models.model_config import ModelConfig

# Say nothing about how long a forward takes.
_NOT_SHAPE = ("rms_norm_eps", "rope", "eos_token_ids", "dtype", "max_position_embeddings")


def engine_conditions(
    engine: Engine, *, runner: str, target_name: str | None = None, drafter_name: str | None = None
) -> Conditions:
    """Conditions of `engine`; the names are for the reader, by default those of its configuration."""
    fingerprint = engine.fingerprint()
    drafter = None
    if engine.gamma:
        config = getattr(engine.drafter, "config", None)
        shape: dict[str, Any] = {"block_size": engine.gamma}
        if engine.ngram is not None:
            shape["longest_match"] = engine.ngram.longest_match
        elif config is not None:
            shape |= _shape(config.backbone) | {
                "feature_layers": len(config.target_layer_ids),
                "markov_rank": config.markov_rank,
                "markov_head_type": config.markov_head_type or "none",
                "confidence_head": config.enable_confidence_head,
            }
        drafter = ModelShape(drafter_name or _drafter_name(engine), _known(fingerprint["drafter"]), shape)
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


def _drafter_name(engine: Engine) -> str:
    config = engine.config
    if config.load_format == "dummy" and config.drafter is None:
        return f"a drafter shaped for {config.target}"
    return drafter_for(config.target, config.drafter)


def _shape(config: ModelConfig) -> dict[str, Any]:
    return {key: value for key, value in asdict(config).items() if key not in _NOT_SHAPE}


def _known(fingerprint: str | int) -> str | None:
    text = str(fingerprint)
    return None if text in ("in memory", "none") or text.startswith("random weights") else text
