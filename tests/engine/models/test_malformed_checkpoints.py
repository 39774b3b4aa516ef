"""Checkpoints with values of the wrong type or out of range: each is refused with a sentence, none with a traceback."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from draft_pair import FIXTURES, copy_drafter
from refusals import assert_reads_well
from safetensors.torch import load_file, save_file
from tiny_models import LLAMA3_ROPE, SHAPE

from dspark.engine.errors import CheckpointError
from dspark.engine.models.drafter import Drafter
from dspark.engine.models.drafter_config import DrafterConfig
from dspark.engine.models.model_config import ModelConfig
from dspark.engine.models.target import Target
from dspark.engine.models.weights import Checkpoint

CPU = torch.device("cpu")
DRAFTER = FIXTURES / "dspark_vanilla" / "draft"
SIZES = (
    "vocab_size",
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "max_position_embeddings",
)
END_TOKENS = ["2", True, 2.5, 2**63, -(2**63) - 1, [2, None], ["2"], [[2]], {"id": 2}]
MALFORMED = [
    *((key, value) for key in SIZES for value in ("8", True, 0, -8, 8.0, [8], 2**31, 10**12)),
    *(("eos_token_id", value) for value in END_TOKENS),
    *(("rms_norm_eps", value) for value in (None, "1e-6", -1e-6, True, float("nan"), float("inf"), 10**400)),
    *(("rope_theta", value) for value in (None, "1e4", 0, -1.0, True, float("nan"), {"a": 1})),
    *(("rope_parameters", value) for value in ("default", [1], 5, True, {"full_attention": 3})),
    *(("rope_scaling", value) for value in ("llama3", [1], False)),
    *(("architectures", value) for value in ("LlamaForCausalLM", 3, [3], [None], {"a": 1})),
    *(("layer_types", value) for value in ("full_attention", 3, [1], {"a": 1})),
    *(("sliding_window", value) for value in ("64", True, -1, [64], 6.5)),
    *(
        (key, value)
        for key in ("tie_word_embeddings", "attention_bias", "mlp_bias")
        for value in ("false", "no", 0, [])
    ),
]


def config(**changes: Any) -> dict[str, Any]:
    return {**SHAPE, "architectures": ["LlamaForCausalLM"], **changes}


def named(value: Any) -> str | None:
    return value if isinstance(value, str) else str(value)[:24]


@pytest.mark.parametrize(("key", "value"), MALFORMED, ids=named)
def test_a_malformed_value_in_config_json_is_refused_by_name(key: str, value: Any) -> None:
    with pytest.raises(CheckpointError, match="full_attention" if "full" in str(value) else key) as caught:
        ModelConfig.from_dict(config(**{key: value}))
    assert_reads_well(caught.value)
    assert len(str(caught.value)) < 200


@pytest.mark.parametrize("value", END_TOKENS, ids=named)
def test_malformed_end_tokens_in_generation_config_json_are_refused(tmp_path: Path, value: Any) -> None:
    (tmp_path / "config.json").write_text(json.dumps(config()))
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": value}))
    with pytest.raises(CheckpointError, match=r"`eos_token_id` in generation_config\.json") as caught:
        ModelConfig.from_folder(tmp_path)
    assert_reads_well(caught.value)


@pytest.mark.parametrize("key", ["factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"])
@pytest.mark.parametrize("value", ["8", None, -1.0, float("nan"), True, [8]], ids=named)
def test_a_malformed_llama3_scaling_is_refused_by_name(key: str, value: Any) -> None:
    with pytest.raises(CheckpointError, match=f"`{key}`") as caught:
        ModelConfig.from_dict(config(rope_parameters={**LLAMA3_ROPE, key: value}))
    assert_reads_well(caught.value)


@pytest.mark.parametrize("other", [{"rope_type": "yarn", "factor": 4.0}, LLAMA3_ROPE], ids=["yarn", "llama3"])
def test_rope_that_is_described_twice_and_not_alike_is_refused(other: dict[str, Any]) -> None:
    with pytest.raises(CheckpointError, match="describes RoPE twice") as caught:
        ModelConfig.from_dict(config(rope_parameters={"rope_type": "default"}, rope_scaling=other))
    assert_reads_well(caught.value)


@pytest.mark.parametrize("changes", [{"head_dim": 15}, {"hidden_size": 4, "num_key_value_heads": 6}], ids=["odd", "0"])
def test_heads_that_cannot_be_rotated_in_pairs_are_refused(changes: dict[str, Any]) -> None:
    content = {key: value for key, value in config().items() if key != "head_dim"}
    with pytest.raises(CheckpointError, match="rotated in pairs") as caught:
        ModelConfig.from_dict({**content, **changes})
    assert_reads_well(caught.value)


@pytest.mark.parametrize("name", ["dspark_vanilla", "zlab_dflash", "spec_dspark_d2t"])
def test_a_drafter_in_the_place_of_a_target_is_called_one(name: str) -> None:
    folder = FIXTURES / name / "draft"
    with pytest.raises(CheckpointError, match=r"draft is a drafter, not a target$") as caught:
        ModelConfig.from_folder(folder)
    assert_reads_well(caught.value)


@pytest.mark.parametrize("model_type", [["llama"], 3, {"a": 1}], ids=named)
def test_a_model_type_that_is_no_string_is_refused(model_type: Any) -> None:
    with pytest.raises(CheckpointError, match="is not supported") as caught:
        ModelConfig.from_dict({**SHAPE, "model_type": model_type})
    assert_reads_well(caught.value)


@pytest.mark.parametrize("depth", [500, 5_000, 100_000])
@pytest.mark.parametrize("reader", [ModelConfig, DrafterConfig])
def test_deeply_nested_json_is_refused(tmp_path: Path, reader: Any, depth: int) -> None:
    text = f'{{"architectures": {"[" * depth}{"]" * depth}}}'
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(CheckpointError, match=r"config\.json") as caught:
        reader.from_folder(tmp_path)
    assert_reads_well(caught.value)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        *(("block_size", value) for value in ("7", 0, -1, 65, 10**6, 7.0, None)),
        *(("architectures", value) for value in ("Qwen3DSparkModel", 3, [["Qwen3DSparkModel"]])),
        *((key, "false") for key in ("tie_word_embeddings", "attention_bias")),
        *((key, "no") for key in ("enable_confidence_head", "confidence_head_with_markov")),
        *((key, value) for key in ("markov_rank", "num_target_layers", "head_dim") for value in ("8", True, -1, 2**31)),
        ("max_position_embeddings", 10**12),
        ("markov_head_type", ["vanilla"]),
        ("target_layer_ids", {"a": 1}),
    ],
    ids=named,
)
def test_a_malformed_value_of_a_drafter_is_refused(key: str, value: Any) -> None:
    raw = json.loads((DRAFTER / "config.json").read_text())
    with pytest.raises(CheckpointError, match="Markov head type" if key == "markov_head_type" else key) as caught:
        DrafterConfig.from_dict({**raw, key: value})
    assert_reads_well(caught.value)


@pytest.mark.parametrize("block_size", [1, 64])
def test_block_sizes_from_1_to_64_are_accepted(block_size: int) -> None:
    raw = json.loads((DRAFTER / "config.json").read_text())
    assert DrafterConfig.from_dict({**raw, "block_size": block_size}).block_size == block_size


@pytest.mark.parametrize(
    "weight_map",
    [
        None,
        [],
        "model.safetensors",
        {"a": 3},
        {"a": None},
        {"a": ["b"]},
        {"a": ""},
        {"a": "x" * 5000 + ".safetensors"},
        {"a": "model.bin"},
    ],
)
def test_a_wrong_weight_map_is_refused(tmp_path: Path, weight_map: Any) -> None:
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    with pytest.raises(CheckpointError, match="weight_map") as caught:
        Checkpoint(tmp_path)
    assert_reads_well(caught.value)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize(
    "name", ["model.embed_tokens.weight", "model.layers.1.mlp.up_proj.weight", "model.norm.weight"]
)
def test_a_target_with_weights_that_are_not_finite_is_refused(
    tiny_model, tmp_path: Path, name: str, value: float
) -> None:
    folder = tiny_model("llama").folder
    tensors = load_file(folder / "model.safetensors")
    tensors[name].view(-1)[-1] = value
    save_file(tensors, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text((folder / "config.json").read_text())
    with pytest.raises(CheckpointError, match=f"tensor {name} holds values that are not finite") as caught:
        Target.load(tmp_path, device=CPU, dtype="float32")
    assert_reads_well(caught.value)


@pytest.mark.parametrize("name", ["fc.weight", "markov_head.markov_w2.weight", "confidence_head.proj.bias"])
def test_a_drafter_with_weights_that_are_not_finite_is_refused(tmp_path: Path, name: str) -> None:
    target = Target.load(FIXTURES / "dspark_vanilla" / "target", device=CPU, dtype="float32")
    broken = load_file(DRAFTER / "model.safetensors")[name]
    broken.view(-1)[0] = float("nan")
    folder = copy_drafter(DRAFTER, tmp_path, tensors={name: broken})
    with pytest.raises(CheckpointError, match=f"tensor {name} holds values that are not finite") as caught:
        Drafter.load(folder, target=target, device=CPU, dtype="float32")
    assert_reads_well(caught.value)


def test_finite_weights_whose_sum_overflows_are_accepted(tmp_path: Path) -> None:
    save_file({"large": torch.full((8,), 6e4, dtype=torch.float16)}, tmp_path / "model.safetensors")
    assert Checkpoint(tmp_path).read("large", (8,)).isfinite().all()
