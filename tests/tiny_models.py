"""Tiny random models that transformers made, of each supported architecture."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SHAPE = {
    "vocab_size": 199,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "initializer_range": 0.2,
}
LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 500.0,
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
# name -> (model_type, what differs from SHAPE)
TINY_MODELS: dict[str, tuple[str, Mapping[str, Any]]] = {
    "llama": ("llama", {}),
    "llama_tied": ("llama", {"tie_word_embeddings": True}),
    "llama_biases": ("llama", {"attention_bias": True, "mlp_bias": True}),
    "llama3_rope": ("llama", {"rope_parameters": LLAMA3_ROPE}),
    "mistral": ("mistral", {"sliding_window": None, "head_dim": 16}),
    "qwen2": ("qwen2", {"use_sliding_window": False}),
    "qwen3": ("qwen3", {"head_dim": 16, "num_key_value_heads": 3}),
    "qwen3_tied_biases": ("qwen3", {"head_dim": 8, "tie_word_embeddings": True, "attention_bias": True}),
}


@dataclass(frozen=True)
class TinyModel:
    """A model folder and the transformers model that was saved in it."""

    folder: Path
    reference: Any


def save_tiny_model(name: str, folder: Path) -> TinyModel:
    import torch
    from transformers import AutoModelForCausalLM
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    model_type, changes = TINY_MODELS[name]
    config = CONFIG_MAPPING[model_type](**{**SHAPE, **changes})
    torch.manual_seed(len(name))
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()
    for parameter_name, parameter in model.named_parameters():
        # Fresh models have zero biases and unit norms, which would hide a missing one.
        if "norm" in parameter_name or parameter_name.endswith("bias"):
            torch.nn.init.uniform_(parameter, 0.5, 1.5)
    model.save_pretrained(folder)
    return TinyModel(folder, model)
