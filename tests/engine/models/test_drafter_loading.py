"""Drafter checkpoints that must not load, each with its sentence."""

import pytest
import torch
from draft_pair import FIXTURES, copy_drafter
from refusals import assert_reads_well

from dspark.engine.errors import CheckpointError
from dspark.engine.models.drafter import Drafter
from dspark.engine.models.target import Target

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def target():
    return Target.load(FIXTURES / "dspark_vanilla" / "target", device=CPU, dtype="float32")


@pytest.mark.parametrize(
    ("config", "tensors", "drop", "sentence"),
    [
        ({}, {"fc.weight": (64, 128)}, [], r"fc.weight has shape \[64, 128\].*implies \[64, 192\]"),
        (
            {},
            {"markov_head.markov_w2.weight": (150, 16)},
            [],
            r"markov_w2.weight has shape \[150, 16\].*implies \[256, 16\]",
        ),
        ({}, {"confidence_head.proj.weight": (1, 64)}, [], r"proj.weight has shape \[1, 64\].*implies \[1, 80\]"),
        ({"num_key_value_heads": 4}, {}, [], r"k_proj.weight has shape \[32, 64\].*implies \[64, 64\]"),
        ({}, {}, ["hidden_norm.weight"], "no tensor hidden_norm.weight"),
        ({}, {}, ["layers.1.self_attn.k_norm.weight"], "no tensor layers.1.self_attn.k_norm.weight"),
        ({"markov_head_type": "gated"}, {}, [], "no tensor markov_head.gate_proj.weight"),
        ({"num_hidden_layers": 3, "layer_types": None}, {}, [], r"no tensor layers.2"),
        (
            {"num_hidden_layers": 1, "layer_types": None},
            {},
            [],
            r"no use for: layers\.1\.\S+, layers\.1\.\S+, layers\.1\.\S+ and \d more",
        ),
        (
            {"enable_confidence_head": False},
            {},
            [],
            "no use for: confidence_head.proj.bias, confidence_head.proj.weight$",
        ),
        (
            {"markov_rank": 0, "enable_confidence_head": False},
            {},
            [],
            r"no use for: confidence_head\.\S+, confidence_head\.\S+, markov_head.markov_w1.weight and 1 more",
        ),
        ({}, {"layers.0.self_attn.q_proj.bias": (64,)}, [], "no use for: layers.0.self_attn.q_proj.bias$"),
        ({}, {"d2t": (150,)}, [], "no use for: d2t$"),
        ({"tie_word_embeddings": True}, {"lm_head.weight": (256, 64)}, [], "lm_head.weight differs from the embedding"),
        ({"vocab_size": 300}, {}, [], "expects a vocabulary of 300, but the target has 256"),
        ({"hidden_size": 32}, {}, [], "expects hidden size 32, but the target has 64"),
        ({"num_target_layers": 8}, {}, [], "expects 8 target layers, but the target has 6"),
        ({"target_layer_ids": [0, 2, 6]}, {}, [], "target layer 6"),
    ],
    ids=[
        "fc-shape",
        "vocabulary-of-w2",
        "confidence-shape",
        "kv-heads",
        "norm-missing",
        "k-norm-missing",
        "gate-missing",
        "layer-missing",
        "layer-left-over",
        "confidence-left-over",
        "markov-left-over",
        "bias-left-over",
        "unknown-left-over",
        "tied-head-of-its-own",
        "vocabulary",
        "hidden-size",
        "num-target-layers",
        "target-layer",
    ],
)
def test_loading_refuses_with_a_sentence_and_a_remedy(tmp_path, target, config, tensors, drop, sentence):
    folder = copy_drafter(
        FIXTURES / "dspark_vanilla" / "draft",
        tmp_path,
        config=config,
        tensors={name: torch.zeros(shape) for name, shape in tensors.items()},
        drop=drop,
    )
    with pytest.raises(CheckpointError, match=sentence) as failure:
        Drafter.load(folder, target=target, device=CPU, dtype="float32")
    assert_reads_well(failure.value)
