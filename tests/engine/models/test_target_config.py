"""What config.json files are read as, and which are refused with what words."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from refusals import assert_reads_well
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
    "architecture": (config("GemmaForCausalLM"), "architecture GemmaForCausalLM"),
    "moe_architecture": (config("Qwen3MoeForCausalLM"), "Qwen3MoeForCausalLM"),
    "model_type_only": ({**SHAPE, "model_type": "mixtral"}, "architecture mixtral"),
    "nothing_named": (dict(SHAPE), "none named"),
    "experts": (config(num_local_experts=8), "mixture of experts"),
    "mistral_window": (config("MistralForCausalLM", sliding_window=64), "sliding window.*sliding_window: 64"),
    "qwen_window": (
        config("Qwen2ForCausalLM", use_sliding_window=True, sliding_window=64, max_window_layers=1),
        "sliding window.*from layer 1",
    ),
    "layer_types": (
        config("Qwen3ForCausalLM", layer_types=["full_attention", "sliding_attention"], sliding_window=8),
        "sliding window.*layer 1",
    ),
    "yarn": (config(rope_scaling={"type": "yarn", "factor": 4.0}), "`yarn`"),
    "linear": (config(rope_parameters={"rope_type": "linear", "factor": 2.0}), "`linear`"),
    "dynamic": (config(rope_scaling={"rope_type": "dynamic", "factor": 2.0}), "`dynamic`"),
    "llama3_incomplete": (config(rope_scaling={"rope_type": "llama3", "factor": 2.0}), "lacks low_freq_factor"),
    "partial_rotary": (config(partial_rotary_factor=0.5), "partial rotary"),
    "activation": (config(hidden_act="gelu"), "hidden_act `gelu`"),
    "quantised": (config(quantization_config={"quant_method": "gptq"}), "gptq"),
    "missing_size": ({key: value for key, value in config().items() if key != "vocab_size"}, "`vocab_size` .*missing"),
    "uneven_heads": (config(num_key_value_heads=4), "6 attention heads"),
    "no_room": (config(max_position_embeddings=1), "context limit of 1 token"),
}


@pytest.mark.parametrize(("content", "words"), REFUSALS.values(), ids=REFUSALS.keys())
def test_refused_by_name(content: dict[str, Any], words: str) -> None:
    with pytest.raises(CheckpointError, match=words) as caught:
        ModelConfig.from_dict(content)
    assert_reads_well(caught.value)


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


# Widths that differ from each other under every family's defaults: 64 heads of 16.
BARE = {
    "vocab_size": 199,
    "hidden_size": 1024,
    "intermediate_size": 80,
    "num_hidden_layers": 3,
    "num_attention_heads": 64,
    "max_position_embeddings": 4096,
}


@pytest.mark.parametrize(
    ("model_type", "null"),
    [
        *((model_type, None) for model_type in ("llama", "mistral", "qwen2", "qwen3")),
        # transformers allows no null for Mistral.
        *((model_type, "num_key_value_heads") for model_type in ("llama", "qwen2", "qwen3")),
        *((model_type, "eos_token_id") for model_type in ("llama", "mistral", "qwen2", "qwen3")),
    ],
)
def test_what_config_json_does_not_say_is_what_transformers_takes(model_type: str, null: str | None) -> None:
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    content = {**BARE, "model_type": model_type, **({} if null is None else {null: None})}
    theirs, ours = CONFIG_MAPPING[model_type](**content), ModelConfig.from_dict(content)
    assert ours.num_kv_heads == theirs.num_key_value_heads
    assert ours.head_dim == (getattr(theirs, "head_dim", None) or theirs.hidden_size // theirs.num_attention_heads)
    assert ours.rms_norm_eps == theirs.rms_norm_eps
    assert ours.rope.theta == theirs.rope_parameters["rope_theta"]
    assert ours.tie_word_embeddings == theirs.tie_word_embeddings
    assert ours.eos_token_ids == (() if theirs.eos_token_id is None else (theirs.eos_token_id,))
    # The classes without a switch have biases on Q, K and V if they are Qwen2.
    assert ours.qkv_bias == getattr(theirs, "attention_bias", model_type == "qwen2")
    assert ours.mlp_bias == getattr(theirs, "mlp_bias", False)
    assert theirs.hidden_act == "silu"


@pytest.mark.parametrize(
    ("model_type", "changes"),
    [("mistral", {}), ("qwen2", {"use_sliding_window": True}), ("qwen3", {"use_sliding_window": True})],
)
def test_a_window_that_config_json_does_not_name(model_type: str, changes: dict[str, Any]) -> None:
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    content = {**BARE, "model_type": model_type, "max_window_layers": 1, **changes}
    window = CONFIG_MAPPING[model_type](**content).sliding_window
    assert ModelConfig.from_dict({**content, "max_position_embeddings": window}).max_position_embeddings == window
    with pytest.raises(CheckpointError, match=f"sliding_window: {window}"):
        ModelConfig.from_dict({**content, "max_position_embeddings": window + 1})


def copy_with(folder: Path, to: Path, change) -> Path:
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, to / "model.safetensors")
    (to / "config.json").write_text((folder / "config.json").read_text())
    return to


def load(folder: Path) -> Target:
    return Target.load(folder, device=CPU, dtype="float32")


def check_refused(folder: Path, words: str) -> None:
    with pytest.raises(CheckpointError, match=words) as caught:
        load(folder)
    assert_reads_well(caught.value)


def test_damaged_checkpoints_say_what_is_wrong(tiny_model, tmp_path: Path) -> None:
    folder = tiny_model("llama").folder
    name = "model.layers.1.mlp.up_proj.weight"
    check_refused(tmp_path, r"config\.json")
    copy_with(folder, tmp_path, lambda tensors: tensors.pop(name))
    check_refused(tmp_path, f"no tensor {name}")
    copy_with(folder, tmp_path, lambda tensors: tensors.update({name: torch.zeros(3, 4)}))
    check_refused(tmp_path, rf"{name} has shape \[3, 4\].*\[80, 48\]")
    copy_with(folder, tmp_path, lambda tensors: tensors.update({name: torch.zeros(80, 48, dtype=torch.int8)}))
    check_refused(tmp_path, "stored as I8")
    (tmp_path / "model.safetensors").write_bytes((folder / "model.safetensors").read_bytes()[:1000])
    check_refused(tmp_path, "cannot be read")
    (tmp_path / "model.safetensors").unlink()
    check_refused(tmp_path, "neither")
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {name: "part-1.safetensors"}}))
    check_refused(tmp_path, r"lacks part-1\.safetensors")
    (tmp_path / "config.json").write_text("{")
    check_refused(tmp_path, "cannot be read")


@pytest.mark.parametrize(
    ("model", "left_over", "words"),
    [
        ("llama", ["model.layers.1.self_attn.q_proj.bias"], "no use for: model.layers.1.self_attn.q_proj.bias$"),
        ("llama", ["model.layers.3.mlp.up_proj.weight"], "no use for: model.layers.3.mlp.up_proj.weight$"),
        ("llama", ["model.layers.0.self_attn.q_norm.weight"], "q_norm.weight$"),
        ("qwen2", ["model.layers.0.self_attn.o_proj.bias"], "o_proj.bias$"),
        ("llama", ["d", "a", "c", "b", "e"], "no use for: a, b, c and 2 more$"),
        ("llama_tied", ["score.weight"], "score.weight$"),
    ],
    ids=["bias", "layer", "norm", "output-bias", "many", "tied"],
)
def test_tensors_that_nothing_reads_are_refused(
    tiny_model, tmp_path: Path, model: str, left_over: list[str], words: str
) -> None:
    extra = {name: torch.zeros(48) for name in left_over}
    copy_with(tiny_model(model).folder, tmp_path, lambda tensors: tensors.update(extra))
    check_refused(tmp_path, words)


def test_tensors_that_say_nothing_new_are_accepted(tiny_model, tmp_path: Path) -> None:
    folder = tiny_model("llama_tied").folder

    def add(tensors: dict[str, torch.Tensor]) -> None:
        tensors["model.layers.0.self_attn.rotary_emb.inv_freq"] = torch.zeros(4)
        tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].clone()

    target = load(copy_with(folder, tmp_path, add))
    assert torch.equal(target.head.weight, load(folder).head.weight)


def test_a_tied_head_of_its_own_is_refused(tiny_model, tmp_path: Path) -> None:
    def add(tensors: dict[str, torch.Tensor]) -> None:
        tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"] + 1

    copy_with(tiny_model("llama_tied").folder, tmp_path, add)
    check_refused(tmp_path, r"lm_head\.weight differs from the embedding")


def test_unknown_dtype(tiny_model) -> None:
    with pytest.raises(UsageError, match="unknown dtype") as caught:
        Target.load(tiny_model("llama").folder, device=CPU, dtype="int4")
    assert_reads_well(caught.value)
