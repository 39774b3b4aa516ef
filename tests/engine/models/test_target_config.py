"""What config.json files are read as, and which are refused with what words."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from tiny_models import LLAMA3_ROPE, SHAPE
from torch.testing import assert_close

from dspark.engine.errors import CheckpointError, UsageError
from dspark.engine.models.model_config import ModelConfig
from dspark.engine.models.rope import RotaryTable
from dspark.engine.models.target import Target

CPU = torch.device("cpu")


def config(architecture: str = "LlamaForCausalLM", **changes: Any) -> dict[str, Any]:
    return {**SHAPE, "architectures": [architecture], **changes}


REFUSALS = {
    "architecture": (config("GemmaForCausalLM"), "Architecture GemmaForCausalLM"),
    "moe_architecture": (config("Qwen3MoeForCausalLM"), "Qwen3MoeForCausalLM"),
    "model_type_only": ({**SHAPE, "model_type": "mixtral"}, "Architecture mixtral"),
    "nothing_named": (dict(SHAPE), "none named"),
    "experts": (config(num_local_experts=8), "Mixture of experts"),
    "mistral_window": (config("MistralForCausalLM", sliding_window=64), "Sliding window.*sliding_window: 64"),
    "qwen_window": (
        config("Qwen2ForCausalLM", use_sliding_window=True, sliding_window=64, max_window_layers=1),
        "Sliding window.*from layer 1",
    ),
    "layer_types": (
        config("Qwen3ForCausalLM", layer_types=["full_attention", "sliding_attention"], sliding_window=8),
        "Sliding window.*layer 1",
    ),
    "yarn": (config(rope_scaling={"type": "yarn", "factor": 4.0}), "`yarn`"),
    "linear": (config(rope_parameters={"rope_type": "linear", "factor": 2.0}), "`linear`"),
    "dynamic": (config(rope_scaling={"rope_type": "dynamic", "factor": 2.0}), "`dynamic`"),
    "llama3_incomplete": (config(rope_scaling={"rope_type": "llama3", "factor": 2.0}), "lacks low_freq_factor"),
    "partial_rotary": (config(partial_rotary_factor=0.5), "Partial rotary"),
    "activation": (config(hidden_act="gelu"), "hidden_act `gelu`"),
    "quantised": (config(quantization_config={"quant_method": "gptq"}), "gptq"),
    "missing_size": ({key: value for key, value in config().items() if key != "vocab_size"}, "lacks vocab_size"),
    "uneven_heads": (config(num_key_value_heads=4), "6 attention heads"),
}


@pytest.mark.parametrize(("content", "words"), REFUSALS.values(), ids=REFUSALS.keys())
def test_refused_by_name(content: dict[str, Any], words: str) -> None:
    with pytest.raises(CheckpointError, match=words) as caught:
        ModelConfig.from_dict(content)
    assert caught.value.remedy


ACCEPTED = {
    "mistral_without_window": config("MistralForCausalLM", sliding_window=None),
    "mistral_window_beyond_context": config("MistralForCausalLM", sliding_window=4096),
    "qwen_window_off": config("Qwen2ForCausalLM", use_sliding_window=False, sliding_window=64, max_window_layers=1),
    "qwen_no_layer_beyond": config(
        "Qwen2ForCausalLM", use_sliding_window=True, sliding_window=64, max_window_layers=28
    ),
}


@pytest.mark.parametrize("content", ACCEPTED.values(), ids=ACCEPTED.keys())
def test_windows_not_in_force_are_accepted(content: dict[str, Any]) -> None:
    assert ModelConfig.from_dict(content).num_layers == 3


def test_both_rope_spellings_agree() -> None:
    older = {key: value for key, value in LLAMA3_ROPE.items() if key != "rope_theta"}
    assert (
        ModelConfig.from_dict(config(rope_theta=500.0, rope_scaling=older)).rope
        == ModelConfig.from_dict(config(rope_parameters=LLAMA3_ROPE)).rope
    )


@pytest.mark.parametrize(
    "parameters", [{"rope_type": "default", "rope_theta": 1e5}, LLAMA3_ROPE], ids=["default", "llama3"]
)
def test_rope_table_equals_transformers(parameters: dict[str, Any]) -> None:
    from transformers import LlamaConfig
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

    positions = torch.arange(300)
    reference = LlamaRotaryEmbedding(LlamaConfig(hidden_size=48, num_attention_heads=3, rope_parameters=parameters))
    cos, sin = reference(torch.empty(0), positions[None])
    rope = ModelConfig.from_dict(config(rope_parameters=parameters)).rope
    table = RotaryTable(rope, head_dim=16, num_positions=300, device=CPU)
    ours = table.gather(positions)
    assert_close(ours[0][:, 0], cos[0], atol=1e-5, rtol=0)
    # Ours carries the rotation's minus.
    assert_close(ours[1][:, 0], torch.cat((-sin[0, :, :8], sin[0, :, 8:]), dim=1), atol=1e-5, rtol=0)


def test_end_tokens_are_those_of_the_generation_config_if_it_names_any(tmp_path: Path) -> None:
    assert ModelConfig.from_dict(config(eos_token_id=2)).eos_token_ids == (2,)
    assert ModelConfig.from_dict(config(eos_token_id=[2, 5])).eos_token_ids == (2, 5)
    assert ModelConfig.from_dict(config(eos_token_id=None)).eos_token_ids == ()
    (tmp_path / "config.json").write_text(json.dumps(config(eos_token_id=2)))
    assert ModelConfig.from_folder(tmp_path).eos_token_ids == (2,)
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": [7, 9]}')
    assert ModelConfig.from_folder(tmp_path).eos_token_ids == (7, 9)


def copy_with(folder: Path, to: Path, change) -> Path:
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, to / "model.safetensors")
    (to / "config.json").write_text((folder / "config.json").read_text())
    return to


def load(folder: Path) -> Target:
    return Target.load(folder, device=CPU, dtype="float32")


def test_damaged_checkpoints_say_what_is_wrong(tiny_model, tmp_path: Path) -> None:
    folder = tiny_model("llama").folder
    name = "model.layers.1.mlp.up_proj.weight"
    with pytest.raises(CheckpointError, match=r"config\.json"):
        load(tmp_path)
    copy_with(folder, tmp_path, lambda tensors: tensors.pop(name))
    with pytest.raises(CheckpointError, match=f"no tensor {name}"):
        load(tmp_path)
    copy_with(folder, tmp_path, lambda tensors: tensors.update({name: torch.zeros(3, 4)}))
    with pytest.raises(CheckpointError, match=rf"{name} has shape \[3, 4\].*\[80, 48\]"):
        load(tmp_path)
    copy_with(folder, tmp_path, lambda tensors: tensors.update({name: torch.zeros(80, 48, dtype=torch.int8)}))
    with pytest.raises(CheckpointError, match="int8"):
        load(tmp_path)
    (tmp_path / "model.safetensors").write_bytes((folder / "model.safetensors").read_bytes()[:1000])
    with pytest.raises(CheckpointError, match="cannot be read"):
        load(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    with pytest.raises(CheckpointError, match="neither"):
        load(tmp_path)
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {name: "part-1.safetensors"}}))
    with pytest.raises(CheckpointError, match=r"lacks part-1\.safetensors"):
        load(tmp_path)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(CheckpointError, match="cannot be read"):
        load(tmp_path)


def test_context_limit(tiny_model) -> None:
    folder = tiny_model("llama").folder
    assert Target.load(folder, device=CPU, dtype="float32", max_context=100).config.max_position_embeddings == 100
    with pytest.raises(UsageError, match="allows 1 to 256"):
        Target.load(folder, device=CPU, dtype="float32", max_context=257)
    with pytest.raises(UsageError, match="Unknown dtype"):
        Target.load(folder, device=CPU, dtype="int4")
