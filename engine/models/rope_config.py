"""Which rotary embedding a checkpoint asks for, in either spelling of config.json."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dspark.engine.errors import CheckpointError
from dspark.engine.models.config_values import CORRECT, number, refuse, whole_number

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
        newer, older = _object(config, "rope_parameters"), _object(config, "rope_scaling")
        if newer and older and newer != older:
            # Which of them counts differs from reader to reader, and with it the text.
            raise CheckpointError(
                "config.json describes RoPE twice, in `rope_parameters` and in `rope_scaling`, and not alike", CORRECT
            )
        parameters = newer or older
        if "full_attention" in parameters:
            # One entry a layer type; layers with a sliding window are refused elsewhere.
            parameters = _object(parameters, "full_attention")
        theta = number(parameters if "rope_theta" in parameters else config, "rope_theta", 10000.0, low=1.0)
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
                CORRECT,
            )
        factor = number(parameters, "factor", low=1.0)
        low, high = number(parameters, "low_freq_factor"), number(parameters, "high_freq_factor")
        if low >= high:
            refuse(parameters, "high_freq_factor", f"above low_freq_factor ({low:g})")
        original = whole_number(parameters, "original_max_position_embeddings")
        return cls(theta=theta, llama3=Llama3Scaling(factor, low, high, original))


def _object(config: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    value = config.get(key)
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        refuse(config, key, "an object")
    return value
