"""What a target's config.json says, and which ones the decoder can run."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from dspark.engine.errors import CheckpointError
from dspark.engine.models.config_values import (
    CORRECT,
    INT64,
    flag,
    number,
    optional_whole_number,
    strings,
    token_ids,
    whole_number,
)
from dspark.engine.models.refusals import Refusals
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
_NO_FAMILY = _Family("")
SUPPORTED = ", ".join(FAMILIES)
_PICK_DENSE = f"Use a dense, unquantised model with full attention of one of: {SUPPORTED}."


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
        """Read `folder`/config.json; end tokens that its generation_config.json names take precedence.

        Raises:
            CheckpointError: it cannot be read, is of a drafter, or is not supported.
        """
        # A drafter's configuration holds one of these.
        from dspark.engine.models.drafter_formats import is_drafter

        raw = read_json_object(folder / "config.json")
        if is_drafter(raw):
            raise CheckpointError(f"{folder} is a drafter, not a target", f"Use a target of one of: {SUPPORTED}.")
        config = cls.from_dict(raw)
        return replace(config, eos_token_ids=_generation_stop_ids(folder) or config.eos_token_ids)

    @classmethod
    def from_dict(cls, config: Mapping[str, Any]) -> ModelConfig:
        """Read the contents of a config.json; raise a CheckpointError that names what is not supported."""
        refusals = Refusals()
        model = cls.read(config, refusals)
        refusals.raise_first()
        assert model is not None, "a config without a refusal is one that can be read"
        return model

    @staticmethod
    def check_generation(folder: Path) -> None:
        """Raise CheckpointError for a generation_config.json that `from_folder` could not take."""
        _generation_stop_ids(folder)

    @classmethod
    def read(cls, config: Mapping[str, Any], refusals: Refusals) -> ModelConfig | None:
        """As `from_dict`, but refusals are gathered. None if they leave open which tensors there have to be."""

        def read(reader: Callable[[], Any]) -> Any:
            return refusals.gather(reader, None)

        architecture = read(lambda: _architecture(config))
        family = FAMILIES.get(architecture, _NO_FAMILY)
        plain = refusals.check(lambda: _refuse_other_weights(config))
        refusals.check(lambda: _refuse_activation(config))
        refusals.check(lambda: _refuse_window(config, architecture, family))
        num_heads = read(lambda: whole_number(config, "num_attention_heads"))
        hidden_size = read(lambda: whole_number(config, "hidden_size"))
        attention_bias = bool(read(lambda: flag(config, "attention_bias")))
        family_has_bias = architecture == "Qwen2ForCausalLM"
        # Mistral and Qwen2 ignore `attention_bias`: their classes fix it.
        reads_bias = architecture in ("LlamaForCausalLM", "Qwen3ForCausalLM")
        own_kv_heads = read(lambda: optional_whole_number(config, "num_key_value_heads", family.num_kv_heads))
        own_head_dim = read(lambda: optional_whole_number(config, "head_dim", None))
        num_kv_heads = own_kv_heads or num_heads
        head_dim = own_head_dim or family.head_dim or (hidden_size // num_heads if hidden_size and num_heads else None)
        keys = {name: name for name in ("vocab_size", "intermediate_size", "max_position_embeddings")}
        keys["num_layers"] = "num_hidden_layers"
        sizes = {name: read(partial(whole_number, config, key)) for name, key in keys.items()}
        sizes |= {
            "num_heads": num_heads,
            "hidden_size": hidden_size,
            "num_kv_heads": num_kv_heads,
            "head_dim": head_dim,
        }
        others = {
            "rms_norm_eps": read(lambda: number(config, "rms_norm_eps", 1e-6)),
            "rope": read(lambda: RopeConfig.from_dict(config)) or RopeConfig(),
            "tie_word_embeddings": bool(read(lambda: flag(config, "tie_word_embeddings"))),
            "mlp_bias": architecture == "LlamaForCausalLM" and bool(read(lambda: flag(config, "mlp_bias"))),
            "eos_token_ids": read(lambda: token_ids(config, "eos_token_id", family.eos_token_id, source="config.json")),
        }
        refusals.check(lambda: _refuse_heads(num_heads, num_kv_heads, head_dim))
        refusals.check(lambda: _refuse_context(sizes["max_position_embeddings"]))
        if architecture is None or not plain or None in sizes.values():
            return None
        return cls(
            architecture=architecture,
            qkv_bias=family_has_bias or (reads_bias and attention_bias),
            output_bias=reads_bias and attention_bias,
            qk_norm=architecture == "Qwen3ForCausalLM",
            **sizes,
            **others,
        )


def _generation_stop_ids(folder: Path) -> tuple[int, ...]:
    """eos ids of `folder`/generation_config.json; none if there is no such file."""
    path = folder / "generation_config.json"
    return token_ids(read_json_object(path), "eos_token_id", source=path.name) if path.is_file() else ()


def read_json_object(path: Path) -> dict[str, Any]:
    """A JSON file of a checkpoint whose top level is an object."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise CheckpointError(
            f"{path.parent} has no {path.name}", "Give a folder as `save_pretrained` writes it, or a hub id."
        ) from None
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointError(f"{path} cannot be read: {first_line(error)}", "Download the file again.") from error
    if not isinstance(content, dict):
        raise CheckpointError(f"{path} is not a JSON object", "Download the file again.")
    return content


def _architecture(config: Mapping[str, Any]) -> str:
    model_type = config.get("model_type")
    by_type = [name for name, family in FAMILIES.items() if family.model_type == model_type]
    named: list[Any] = strings(config, "architectures") or by_type or [model_type]
    architecture = named[0]
    if not isinstance(architecture, str) or architecture not in FAMILIES:
        raise CheckpointError(
            f"architecture {architecture or '(none named in config.json)'} is not supported",
            f"Use a target of one of: {SUPPORTED}.",
        )
    return architecture


def _refuse_other_weights(config: Mapping[str, Any]) -> None:
    """Raise for what makes the weights others than a dense decoder's."""
    refusals = Refusals()
    quantization = config.get("quantization_config")
    if quantization:
        method = quantization.get("quant_method", "unknown") if isinstance(quantization, Mapping) else "unknown"
        refusals.add(
            f"the checkpoint is quantised (quantization_config: {method}), which is not supported",
            "Use the unquantised checkpoint; `--dtype int8` quantises its weights when they are loaded.",
        )
    for key in ("num_experts", "num_local_experts", "n_routed_experts"):
        if config.get(key):
            refusals.add(f"mixture of experts ({key}: {config[key]}) is not supported", _PICK_DENSE)
    refusals.raise_first()


def _refuse_activation(config: Mapping[str, Any]) -> None:
    activation = config.get("hidden_act", "silu")
    if activation not in ("silu", "swish"):
        raise CheckpointError(f"hidden_act `{activation}` is not supported", _PICK_DENSE)


def _refuse_heads(num_heads: int | None, num_kv_heads: int | None, head_dim: int | None) -> None:
    refusals = Refusals()
    if num_heads and num_kv_heads and num_heads % num_kv_heads:
        refusals.add(
            f"{num_heads} attention heads cannot share {num_kv_heads} key/value heads evenly",
            "Check num_attention_heads and num_key_value_heads in config.json.",
        )
    if head_dim is not None and (head_dim < 2 or head_dim % 2):
        refusals.add(f"heads of {head_dim} channels cannot be rotated in pairs", CORRECT)
    refusals.raise_first()


def _refuse_context(limit: int | None) -> None:
    # A prompt has one token at least, and so has what is decoded behind it.
    if limit == 1:
        raise CheckpointError(
            "a context limit of 1 token (max_position_embeddings: 1) leaves nothing to decode behind a prompt", CORRECT
        )


def _refuse_window(config: Mapping[str, Any], architecture: str | None, family: _Family) -> None:
    window = _window_in_force(config, architecture or "", family)
    if window:
        raise CheckpointError(f"sliding window attention ({window}) is not supported", _PICK_DENSE)


def _window_in_force(config: Mapping[str, Any], architecture: str, family: _Family) -> str | None:
    """The setting that gives some layer a window shorter than the context, as text."""
    layer_types = strings(config, "layer_types")
    window = optional_whole_number(config, "sliding_window", family.sliding_window, 0, INT64)
    if "sliding_attention" in layer_types:
        index = layer_types.index("sliding_attention")
        return f"layer_types names sliding_attention for layer {index}, sliding_window: {window}"
    others = [kind for kind in layer_types if kind != "full_attention"]
    if others:
        return f"layer_types names {others[0]}"
    if not window or window >= whole_number(config, "max_position_embeddings"):
        return None
    if architecture == "MistralForCausalLM":
        return f"sliding_window: {window}"
    if architecture.startswith("Qwen") and flag(config, "use_sliding_window") and not layer_types:
        first = optional_whole_number(config, "max_window_layers", 28, 0) or 0
        if whole_number(config, "num_hidden_layers") > first:
            return f"use_sliding_window: true, sliding_window: {window} from layer {first} on"
    return None
