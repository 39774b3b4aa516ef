"""Targets and drafters with random weights."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from fixture_engine import FIXTURES
from refusals import assert_reads_well

from dspark.engine import Engine, EngineConfig, Request, SamplingParams
from dspark.engine.errors import CheckpointError
from dspark.engine.models.dummy import _config_of, derived_drafter_config, dummy_drafter, dummy_target, named_shapes

CPU = torch.device("cpu")


def test_named_shapes() -> None:
    assert named_shapes() == ["qwen3-14b", "qwen3-4b", "qwen3-8b", "smollm2-135m"]


@pytest.mark.parametrize(
    ("name", "billions"), [("qwen3-4b", 4.02), ("qwen3-8b", 8.19), ("qwen3-14b", 14.77), ("smollm2-135m", 0.1345)]
)
def test_parameter_counts(name: str, billions: float) -> None:
    config = _config_of(name)
    width = (config.num_heads + 2 * config.num_kv_heads) * config.head_dim + config.num_heads * config.head_dim
    layer = config.hidden_size * (width + 3 * config.intermediate_size)
    vocabulary = config.vocab_size * config.hidden_size * (1 if config.tie_word_embeddings else 2)
    assert (config.num_layers * layer + vocabulary) / 1e9 == pytest.approx(billions, rel=0.002)


@pytest.mark.parametrize("name", ["qwen3-4b", "qwen3-8b", "qwen3-14b", "smollm2-135m"])
def test_derived_drafters(name: str) -> None:
    target = _config_of(name)
    config = derived_drafter_config(target)
    config.check_target(target)
    assert config.block_size == 7
    assert config.backbone.num_layers == (5 if name.startswith("qwen3") else 3)
    assert len(set(config.target_layer_ids)) == 5


def test_features_of_the_released_qwen3_drafter() -> None:
    assert derived_drafter_config(_config_of("qwen3-4b")).target_layer_ids == (1, 9, 17, 25, 33)


@pytest.mark.parametrize("name", ["dspark_vanilla", "spec_dspark_d2t", "zlab_dflash"])
def test_decodes_with_random_weights(name: str) -> None:
    folder = FIXTURES / name
    config = EngineConfig(
        target=str(folder / "target"), drafter=str(folder / "draft"), load_format="dummy", device="cpu", concurrency=3
    )
    engine = Engine(config)
    rows = [Request(i, [5 + i, 6, 7], SamplingParams(max_tokens=20, ignore_eos=True)) for i in range(5)]
    texts = {c.index: c.token_ids for c in engine.generate(rows)}
    again = {c.index: c.token_ids for c in Engine(config).generate(rows)}
    assert texts == again
    assert all(len(text) == 20 for text in texts.values())
    assert "random weights" in str(engine.fingerprint()["target"])


def test_shares_the_targets_vocabulary() -> None:
    target = dummy_target(str(FIXTURES / "dspark_vanilla" / "target"), device=CPU, dtype="float32")
    drafter = dummy_drafter("derived", target=target, device=CPU, dtype="float32")
    assert drafter is not None
    assert drafter.embed is target.embed and drafter.head is target.head
    assert dummy_drafter("none", target=target, device=CPU, dtype="float32") is None


def test_unknown_shape(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="no shape") as raised:
        dummy_target("qwen3-5b", device=CPU, dtype="float32")
    assert "qwen3-8b" in raised.value.remedy
    assert_reads_well(raised.value)
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "mamba"}))
    with pytest.raises(CheckpointError):
        dummy_target(str(tmp_path), device=CPU, dtype="float32")
