"""What a target's config.json says, and which ones the decoder can run."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from dspark.engine.errors import CheckpointError
from dspark.engine.models.rope_config import RopeConfig
from dspark.engine.wording import first_line


@dataclass(frozen=True, slots=True)
class _Family:
    """An architecture, and what transformers takes for keys that its config.json lacks."""

    model_type: str
    num_kv_heads: int | None = None  # None: as many as attention heads
    head_dim: int | None = None  # None: hidden size / attention heads
    sliding_window: int | None = None
    eos_token_id: int | None = None


FAMILIES = {
    "LlamaForCausalLM": _Family("llama", eos_token_id=2),
    "MistralForCausalLM": _Family("mistral", num_kv_heads=8, sliding_window=4096, eos_token_id=2),
    "Qwen2ForCausalLM": _Family("qwen2", num_kv_heads=32, sliding_window=4096),
    "Qwen3ForCausalLM": _Family("qwen3", num_kv_heads=32, head_dim=128, sliding_window=4096),
}
SUPPORTED = ", ".join(FAMILIES)


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """Shapes and switches of a Llama-family decoder."""

    architecture: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    rms_norm_eps: float
    max_position_embeddings: int
    rope: RopeConfig
    tie_word_embeddings: bool
    qkv_bias: bool
    output_bias: bool
    mlp_bias: bool
    qk_norm: bool
    eos_token_ids: tuple[int, ...]

    @classmethod
    def from_folder(cls, folder: Path) -> ModelConfig:
        """Read `folder`/config.json; end tokens that its generation_config.json names take precedence."""
        config = cls.from_dict(read_json_object(folder / "config.json"))
        return replace(config, eos_token_ids=_generation_stop_ids(folder) or config.eos_token_ids)

    @classmethod
    def from_dict(cls, config: Mapping[str, Any]) -> ModelConfig:
        """Read the contents of a config.json; raise a CheckpointError that names what is not supported."""
        architecture = _architecture(config)
        family = FAMILIES[architecture]
        _refuse_unsupported(config, architecture)
        num_heads = _required(config, "num_attention_heads")
        hidden_size = _required(config, "hidden_size")
        attention_bias = bool(config.get("attention_bias", False))
        family_has_bias = architecture == "Qwen2ForCausalLM"
        # Mistral and Qwen2 ignore `attention_bias`: their classes fix it.
        reads_bias = architecture in ("LlamaForCausalLM", "Qwen3ForCausalLM")
        model = cls(
            architecture=architecture,
            vocab_size=_required(config, "vocab_size"),
            hidden_size=hidden_size,
            intermediate_size=_required(config, "intermediate_size"),
            num_layers=_required(config, "num_hidden_layers"),
            num_heads=num_heads,
            num_kv_heads=config.get("num_key_value_heads", family.num_kv_heads) or num_heads,
            head_dim=config.get("head_dim") or family.head_dim or hidden_size // num_heads,
            rms_norm_eps=float(config.get("rms_norm_eps", 1e-6)),
            max_position_embeddings=_required(config, "max_position_embeddings"),
            rope=RopeConfig.from_dict(config),
            tie_word_embeddings=bool(config.get("tie_word_embeddings", False)),
            qkv_bias=family_has_bias or (reads_bias and attention_bias),
            output_bias=reads_bias and attention_bias,
            mlp_bias=architecture == "LlamaForCausalLM" and bool(config.get("mlp_bias", False)),
            qk_norm=architecture == "Qwen3ForCausalLM",
            eos_token_ids=_token_ids(config.get("eos_token_id", family.eos_token_id)),
        )
        if model.num_heads % model.num_kv_heads:
            raise CheckpointError(
                f"{model.num_heads} attention heads cannot share {model.num_kv_heads} key/value heads evenly",
                "Check num_attention_heads and num_key_value_heads in config.json.",
            )
        return model


def _generation_stop_ids(folder: Path) -> tuple[int, ...]:
    """eos ids of `folder`/generation_config.json; none if there is no such file."""
    path = folder / "generation_config.json"
    return _token_ids(read_json_object(path).get("eos_token_id")) if path.is_file() else ()


def read_json_object(path: Path) -> dict[str, Any]:
    """A JSON file of a checkpoint whose top level is an object."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise CheckpointError(
            f"{path.parent} has no {path.name}", "Give a folder as `save_pretrained` writes it, or a hub id."
        ) from None
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path} cannot be read: {first_line(error)}", "Download the file again.") from error
    if not isinstance(content, dict):
        raise CheckpointError(f"{path} is not a JSON object", "Download the file again.")
    return content


def _architecture(config: Mapping[str, Any]) -> str:
    model_type = config.get("model_type")
    by_type = [name for name, family in FAMILIES.items() if family.model_type == model_type]
    architecture = (config.get("architectures") or by_type or [model_type])[0]
    if architecture not in FAMILIES:
        raise CheckpointError(
            f"architecture {architecture or '(none named in config.json)'} is not supported",
            f"Use a target of one of: {SUPPORTED}.",
        )
    return str(architecture)


def _refuse_unsupported(config: Mapping[str, Any], architecture: str) -> None:
    remedy = f"Use a dense, unquantised target with full attention of one of: {SUPPORTED}."
    quantization = config.get("quantization_config")
    if quantization:
        method = quantization.get("quant_method", "unknown") if isinstance(quantization, Mapping) else "unknown"
        raise CheckpointError(
            f"the checkpoint is quantised (quantization_config: {method}), which is not supported",
            "Use the unquantised checkpoint; `--dtype int8` quantises its weights when they are loaded.",
        )
    activation = config.get("hidden_act", "silu")
    if activation not in ("silu", "swish"):
        raise CheckpointError(f"hidden_act `{activation}` is not supported", remedy)
    for key in ("num_experts", "num_local_experts"):
        if config.get(key):
            raise CheckpointError(f"mixture of experts ({key}: {config[key]}) is not supported", remedy)
    window = _window_in_force(config, architecture)
    if window:
        raise CheckpointError(f"sliding window attention ({window}) is not supported", remedy)


def _window_in_force(config: Mapping[str, Any], architecture: str) -> str | None:
    """The setting that gives some layer a window shorter than the context, as text."""
    layer_types = config.get("layer_types") or []
    window = config.get("sliding_window", FAMILIES[architecture].sliding_window)
    if "sliding_attention" in layer_types:
        index = layer_types.index("sliding_attention")
        return f"layer_types names sliding_attention for layer {index}, sliding_window: {window}"
    others = [kind for kind in layer_types if kind != "full_attention"]
    if others:
        return f"layer_types names {others[0]}"
    if not window or window >= config.get("max_position_embeddings", 0):
        return None
    if architecture == "MistralForCausalLM":
        return f"sliding_window: {window}"
    if architecture.startswith("Qwen") and config.get("use_sliding_window") and not layer_types:
        first = config.get("max_window_layers", 28)
        if config.get("num_hidden_layers", 0) > first:
            return f"use_sliding_window: true, sliding_window: {window} from layer {first} on"
    return None


def _required(config: Mapping[str, Any], key: str) -> int:
    value = config.get(key)
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        found = "lacks" if value is None else f"has {value!r} for"
        raise CheckpointError(f"config.json {found} {key}", "Download the checkpoint's config.json again.")
    return value


def _token_ids(value: Any) -> tuple[int, ...]:
    if value is None:
        return ()
    return tuple(value) if isinstance(value, list | tuple) else (int(value),)
