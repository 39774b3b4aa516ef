"""What inspection says of folders, and that it refuses whatever loading refuses."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from draft_pair import FIXTURES, copy_drafter
from refusals import assert_reads_well
from safetensors.torch import load_file, save_file
from speculators_folders import VARIANTS, write_drafter
from tiny_training import chat_target

from dspark.engine.errors import CheckpointError, UsageError
from dspark.engine.jobs.tokenizer import Tokenizer
from dspark.engine.models.checkpoint_files import CheckpointFiles
from dspark.engine.models.drafter import Drafter
from dspark.engine.models.inspection import Inspection, inspect_checkpoint
from dspark.engine.models.target import Target

NAMES = ("dspark_vanilla", "dspark_rnn", "dspark_sliding", "spec_dspark_d2t", "zlab_dflash")
CPU = torch.device("cpu")
VANILLA = FIXTURES / "dspark_vanilla"


def inspect(folder: Path | str, target: Path | str | None = None) -> Inspection:
    other = None if target is None else CheckpointFiles.locate(str(target))
    return inspect_checkpoint(CheckpointFiles.locate(str(folder)), target=other)


def loading_refuses(folder: Path, target: Path = VANILLA / "target") -> str:
    with pytest.raises(CheckpointError) as refused:
        Drafter.load(folder, target=Target.load(target, device=CPU, dtype="float32"), device=CPU, dtype="float32")
    return str(refused.value)


@pytest.mark.parametrize("name", NAMES)
def test_the_fixtures_are_usable(name: str) -> None:
    drafter = inspect(FIXTURES / name / "draft", FIXTURES / name / "target")
    target = inspect(FIXTURES / name / "target")
    assert drafter.usable and target.usable
    assert (drafter.kind, target.kind) == ("drafter", "target")
    stored = load_file(FIXTURES / name / "draft" / "model.safetensors")
    assert {key: (h.elements, h.size_bytes) for key, h in drafter.headers.items()} == {
        key: (tensor.numel(), tensor.nbytes) for key, tensor in stored.items()
    }
    floats = [tensor for tensor in stored.values() if tensor.is_floating_point()]
    assert drafter.parameters == sum(tensor.numel() for tensor in floats)


@pytest.mark.parametrize("options", VARIANTS.values(), ids=VARIANTS)
def test_every_form_of_speculators_is_usable(tmp_path: Path, options: dict[str, Any]) -> None:
    assert inspect(write_drafter(tmp_path, **options), FIXTURES / "spec_dspark_d2t" / "target").usable


def test_the_builtin_drafter_is_usable() -> None:
    found = inspect("smollm2-135m-dspark")
    assert found.usable and found.format == "DeepSpec" and found.licence == "mit"


def test_the_licence_of_a_name_stands_in_where_the_folder_states_none(tmp_path: Path) -> None:
    shutil.copytree(FIXTURES / "dspark_rnn" / "draft", tmp_path / "draft")
    files = CheckpointFiles("alias", tmp_path / "draft", licence="apache-2.0")
    assert inspect_checkpoint(files).licence == "apache-2.0"
    (tmp_path / "draft" / "README.md").write_text("---\nlicense: mit\n---\n")
    assert inspect_checkpoint(files).licence == "mit"


def test_targets_of_every_architecture_are_usable(any_tiny_model: Any) -> None:
    assert inspect(any_tiny_model.folder).usable


CHANGES: dict[str, tuple[dict[str, Any], dict[str, torch.Tensor], list[str]]] = {
    "shape": ({}, {"fc.weight": torch.zeros(64, 128)}, []),
    "missing": ({}, {}, ["layers.1.self_attn.k_norm.weight"]),
    "left-over": ({"markov_rank": 0, "enable_confidence_head": False}, {}, []),
    "heads": ({"num_key_value_heads": 4}, {}, []),
    "dtype": ({}, {"norm.weight": torch.zeros(64, dtype=torch.int8)}, []),
    "vocabulary": ({"vocab_size": 300}, {}, ["embed_tokens.weight", "lm_head.weight"]),
    "layers-of-the-target": ({"num_target_layers": 8}, {}, []),
    "feature-layer": ({"target_layer_ids": [0, 2, 6]}, {}, []),
    "yarn": ({"rope_parameters": {"rope_type": "yarn", "rope_theta": 1e6, "factor": 4.0}}, {}, []),
    "experts": ({"num_experts": 8}, {}, []),
    "head-type": ({"markov_head_type": "lstm"}, {}, []),
    "block": ({"block_size": 0}, {}, []),
    "context": ({"max_position_embeddings": 1}, {}, []),
    "no-format": ({"architectures": ["Qwen3Model"]}, {}, []),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_what_loading_refuses_is_refused_in_the_same_words(
    tmp_path: Path, change: tuple[dict[str, Any], dict[str, torch.Tensor], list[str]]
) -> None:
    config, tensors, drop = change
    folder = copy_drafter(VANILLA / "draft", tmp_path, config=config, tensors=tensors, drop=drop)
    found = inspect(folder, VANILLA / "target")
    assert not found.usable
    said = loading_refuses(folder)
    if "this is not a drafter" in said:
        assert found.kind == "unknown" and "this is neither a drafter nor a target" in str(found.refusals[0])
        assert "Qwen3DSparkModel" in str(found.refusals[0]) and "LlamaForCausalLM" in str(found.refusals[0])
    else:
        assert said in list(map(str, found.refusals))
    for refusal in found.refusals:
        assert_reads_well(refusal)


@pytest.mark.parametrize("limit", [1, 2])
def test_a_target_needs_room_for_a_prompt_and_an_answer(tmp_path: Path, limit: int) -> None:
    target = chat_target(tmp_path / "target")
    raw = json.loads((target / "config.json").read_text())
    (target / "config.json").write_text(json.dumps(raw | {"max_position_embeddings": limit}))
    if limit == 2:
        assert inspect(target).usable
        return
    with pytest.raises(CheckpointError) as refused:
        Target.load(target, device=CPU, dtype="float32")
    assert list(map(str, inspect(target).refusals)) == [str(refused.value)]


BROKEN_TOKENIZERS = {
    "truncated": ("tokenizer.json", lambda text: text[: len(text) // 2]),
    "no JSON": ("tokenizer.json", lambda text: "<html>"),
    "empty": ("tokenizer.json", lambda text: ""),
    "of another kind": ("tokenizer.json", lambda text: '{"model": {"type": "Telepathy"}}'),
    "configuration": ("tokenizer_config.json", lambda text: text[:-1]),
}


@pytest.mark.parametrize(("name", "damage"), BROKEN_TOKENIZERS.values(), ids=BROKEN_TOKENIZERS)
def test_a_tokenizer_that_loading_refuses_is_refused_in_the_same_words(tmp_path: Path, name: str, damage: Any) -> None:
    target = chat_target(tmp_path / "target")
    assert inspect(target).usable
    (target / name).write_text(damage((target / name).read_text()))
    with pytest.raises(CheckpointError) as refused:
        Tokenizer.load(target)
    assert list(map(str, inspect(target).refusals)) == [str(refused.value)]
    with_drafter = inspect(VANILLA / "draft", target)
    assert list(map(str, with_drafter.refusals)) == [f"the target cannot be used: {refused.value}"]


def test_a_broken_tokenizer_hides_no_other_reason(tmp_path: Path) -> None:
    target = chat_target(tmp_path / "target")
    (target / "tokenizer.json").write_text("{")
    tensors = load_file(target / "model.safetensors")
    save_file(tensors | {"model.norm.weight": torch.zeros(64, dtype=torch.int8)}, target / "model.safetensors")
    found = " ".join(map(str, inspect(target).refusals))
    assert "the tokenizer in" in found and "model.norm.weight is stored as I8" in found


DTYPES = {
    **{name: getattr(torch, name) for name in ("float64", "float32", "bfloat16", "float16", "int8", "uint8", "int64")},
    **{name: getattr(torch, name) for name in ("bool", "float8_e4m3fn", "float8_e5m2", "complex64", "uint16")},
}


TAKEN = {
    "norm.weight": (torch.float64, torch.float32, torch.bfloat16, torch.float16),
    "d2t": (torch.int8, torch.uint8, torch.uint16, torch.int64, torch.bool),
}


@pytest.mark.parametrize("tensor", TAKEN)
@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
def test_every_dtype_is_taken_or_refused_as_loading_does(tmp_path: Path, tensor: str, dtype: torch.dtype) -> None:
    folder, target = tmp_path / "drafter", FIXTURES / "spec_dspark_d2t" / "target"
    stored = load_file(FIXTURES / "spec_dspark_d2t" / "draft" / "model.safetensors")
    zeros = {tensor: torch.zeros(stored[tensor].shape, dtype=dtype)}
    copy_drafter(FIXTURES / "spec_dspark_d2t" / "draft", folder, tensors=zeros)
    model, said = Target.load(target, device=CPU, dtype="float32"), []
    try:
        Drafter.load(folder, target=model, device=CPU, dtype="float32")
    except CheckpointError as error:
        # What zeros mean is for loading alone to say.
        said = [str(error)] if "is stored as" in str(error) else []
    assert list(map(str, inspect(folder, target).refusals)) == said
    assert bool(said) != (dtype in TAKEN[tensor])


def test_every_reason_is_told_at_once(tmp_path: Path) -> None:
    folder = copy_drafter(
        VANILLA / "draft",
        tmp_path / "drafter",
        config={
            "rope_parameters": {"rope_type": "yarn", "rope_theta": 1e6, "factor": 4.0},
            "hidden_act": "gelu",
            "num_target_layers": 8,
            "target_layer_ids": [0, 2, 6, 7],
        },
        tensors={"norm.weight": torch.zeros(64, dtype=torch.int8), "surplus.weight": torch.zeros(1)},
        drop=["hidden_norm.weight", "layers.0.mlp.up_proj.weight"],
    )
    target = tmp_path / "target"
    shutil.copytree(VANILLA / "target", target)
    raw = json.loads((target / "config.json").read_text())
    (target / "config.json").write_text(json.dumps(raw | {"rope_parameters": {"rope_type": "longrope"}}))
    (target / "generation_config.json").write_text('{"eos_token_id": "two"}')
    expected = [
        "hidden_act `gelu`",
        "RoPE scaling `yarn`",
        "no tensor layers.0.mlp.up_proj.weight",
        "no tensor hidden_norm.weight",
        "norm.weight is stored as I8",
        "fc.weight has shape [64, 192], but config.json implies [64, 256]",
        "no use for: surplus.weight",
        "the target cannot be used: RoPE scaling `longrope`",
        "the target cannot be used: `eos_token_id` in generation_config.json",
        "expects 8 target layers, but the target has 6",
        "reads target layer 6",
        "reads target layer 7",
    ]
    found = list(map(str, inspect(folder, target).refusals))
    for words in expected:
        assert sum(words in reason for reason in found) == 1, words
    assert len(found) == len(expected)


def test_every_reason_of_a_mixture_of_experts(tmp_path: Path) -> None:
    raw = json.loads((VANILLA / "target" / "config.json").read_text())
    raw |= {
        "architectures": ["Qwen3MoeForCausalLM"],
        "num_experts": 8,
        "sliding_window": 16,
        "use_sliding_window": True,
    }
    raw |= {"layer_types": ["sliding_attention"] * 6}
    (tmp_path / "config.json").write_text(json.dumps(raw))
    found = inspect(tmp_path)
    assert found.kind == "target"
    words = ["neither model.safetensors nor", "Qwen3MoeForCausalLM", "mixture of experts", "sliding window attention"]
    assert [word in str(reason) for word, reason in zip(words, found.refusals, strict=True)] == [True] * 4


@pytest.mark.parametrize("part", ["target", "draft"])
def test_more_layers_than_tensors_are_refused_in_one_sentence(tmp_path: Path, part: str) -> None:
    folder = copy_drafter(VANILLA / part, tmp_path, config={"num_hidden_layers": 2**24, "layer_types": None})
    [refusal] = inspect(folder).refusals
    assert "has 16777216 layers, but there are only" in str(refusal)
    assert_reads_well(refusal)


def test_a_drafter_is_no_target_and_a_target_is_compared_with_none() -> None:
    found = inspect(VANILLA / "draft", VANILLA / "draft")
    assert [str(reason) for reason in found.refusals] == [f"{VANILLA / 'draft'} is a drafter, not a target"]
    with pytest.raises(UsageError, match="compared with no other") as refused:
        inspect(VANILLA / "target", VANILLA / "target")
    assert_reads_well(refused.value)


def test_a_file_that_is_cut_off_is_refused_and_the_rest_is_told(tmp_path: Path) -> None:
    folder = copy_drafter(VANILLA / "draft", tmp_path)
    whole = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(whole[:1000])
    found = inspect(folder)
    assert found.drafter is not None and found.drafter.block_size == 7
    assert ["cannot be read" in str(reason) for reason in found.refusals] == [True]


def test_shards_are_read_by_their_index(tmp_path: Path) -> None:
    folder = copy_drafter(VANILLA / "draft", tmp_path)
    tensors = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    names, shards = sorted(tensors), {}
    for part, chosen in (("a", names[:9]), ("b", names[9:])):
        save_file({name: tensors[name] for name in chosen}, folder / f"{part}.safetensors")
        shards |= dict.fromkeys(chosen, f"{part}.safetensors")
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": shards}))
    assert inspect(folder, VANILLA / "target").usable
    (folder / "b.safetensors").unlink()
    assert "lacks b.safetensors" in str(inspect(folder).refusals[0])


def test_no_weight_is_read_and_torch_is_not_imported(tmp_path: Path) -> None:
    folder = copy_drafter(VANILLA / "draft", tmp_path)
    path = folder / "model.safetensors"
    header = int.from_bytes(path.read_bytes()[:8], "little")
    size = path.stat().st_size
    with path.open("r+b") as file:
        # Whatever the bytes behind the header are, they are not looked at.
        file.seek(8 + header)
        file.write(b"\xff" * (size - 8 - header))
    script = (
        "import sys\n"
        "from dspark.engine.models.checkpoint_files import CheckpointFiles\n"
        "from dspark.engine.models.inspection import inspect_checkpoint\n"
        "assert inspect_checkpoint(CheckpointFiles.locate(sys.argv[1])).usable\n"
        "assert not {'torch', 'transformers'} & set(sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", script, str(folder)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "not finite" in loading_refuses(folder)
