"""Which rotary embedding a checkpoint asks for, in either spelling of config.json."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dspark.engine.errors import CheckpointError

ROPE_REMEDY = "Use a checkpoint whose rope_type is `default` or `llama3`."


@dataclass(frozen=True, slots=True)
class Llama3Scaling:
    """Llama 3.1's stretching of low frequencies."""

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_max_positions: int


@dataclass(frozen=True, slots=True)
class RopeConfig:
    """Base frequency, and Llama 3's scaling if the checkpoint has it."""

    theta: float = 10000.0
    llama3: Llama3Scaling | None = None

    @classmethod
    def from_dict(cls, config: Mapping[str, Any]) -> RopeConfig:
        """Read `rope_theta` + `rope_scaling` (older files) or `rope_parameters` (newer); refuse other kinds by name."""
        parameters = config.get("rope_parameters") or config.get("rope_scaling") or {}
        if any(isinstance(value, Mapping) for value in parameters.values()):
            # One entry a layer type; layers with a sliding window are refused elsewhere.
            parameters = parameters.get("full_attention") or {}
        theta = float(parameters.get("rope_theta", config.get("rope_theta", 10000.0)))
        kind = parameters.get("rope_type", parameters.get("type", "default"))
        partial = parameters.get("partial_rotary_factor", config.get("partial_rotary_factor", 1.0))
        if partial != 1.0:
            raise CheckpointError(f"partial rotary embedding ({partial} of each head) is not supported", ROPE_REMEDY)
        if kind == "default":
            return cls(theta=theta)
        if kind != "llama3":
            raise CheckpointError(f"RoPE scaling `{kind}` is not supported", ROPE_REMEDY)
        names = ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings")
        missing = [name for name in names if name not in parameters]
        if missing:
            raise CheckpointError(
                f"RoPE scaling `llama3` in config.json lacks {', '.join(missing)}",
                "Download the checkpoint's config.json again.",
            )
        factor, low, high, original = (parameters[name] for name in names)
        return cls(theta=theta, llama3=Llama3Scaling(float(factor), float(low), float(high), int(original)))
