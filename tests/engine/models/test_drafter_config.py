"""What a drafter's config.json may say, and the sentence for everything else."""

import json

import pytest
from draft_pair import FIXTURES
from refusals import assert_reads_well

from dspark.engine.errors import CheckpointError
from dspark.engine.models.drafter_config import DrafterConfig
from dspark.engine.models.model_config import ModelConfig


def fixture_config(name="dspark_vanilla", **changes):
    raw = json.loads((FIXTURES / name / "draft" / "config.json").read_text()) | changes
    return {key: value for key, value in raw.items() if value != "absent"}


def fixture_target(**changes):
    raw = json.loads((FIXTURES / "dspark_vanilla" / "target" / "config.json").read_text()) | changes
    return ModelConfig.from_dict(raw)


@pytest.mark.parametrize(
    ("name", "head", "confidence"),
    [("dspark_vanilla", "vanilla", True), ("dspark_rnn", "rnn", True), ("dspark_sliding", "vanilla", False)],
)
def test_reads_the_authors_configs(name, head, confidence):
    config = DrafterConfig.from_dict(fixture_config(name))
    assert config.markov_head_type == head
    assert (config.enable_confidence_head, config.confidence_head_with_markov) == (confidence, confidence)
    assert (config.block_size, config.mask_token_id, config.target_layer_ids) == (7, 255, (0, 2, 4))
    assert (config.num_target_layers, config.markov_rank, config.backbone.num_layers) == (6, 16, 2)
    config.check_target(fixture_target())


def test_rank_zero_needs_no_head_type():
    config = DrafterConfig.from_dict(
        fixture_config(markov_rank=0, markov_head_type="absent", confidence_head_with_markov="absent")
    )
    assert config.markov_head_type is None
    assert config.enable_confidence_head and not config.confidence_head_with_markov


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"speculators_model_type": "dspark"}, r"more than one format.*\(DeepSpec\) and.*\(speculators\)$"),
        ({"dflash_config": {}}, r"more than one format.*\(DeepSpec\) and `dflash_config` \(z-lab DFlash\)$"),
        (
            {"architectures": ["LlamaForCausalLM"]},
            r"looked in.*Qwen3DSparkModel.*speculators_model_type.*dflash_config",
        ),
        ({"architectures": "absent"}, "looked in config.json"),
        ({"markov_head_type": "transformer"}, "'transformer' is not supported"),
        ({"markov_rank": "absent"}, "`markov_rank`.*is missing"),
        ({"markov_rank": 0}, "confidence head a Markov part"),
        ({"block_size": 0}, "`block_size`.*is 0"),
        ({"block_size": True}, "`block_size`.*is true"),
        ({"mask_token_id": 256}, "`mask_token_id` is 256, outside its vocabulary of 256"),
        ({"mask_token_id": None}, "`mask_token_id`.*is null"),
        ({"target_layer_ids": []}, "`target_layer_ids`"),
        ({"target_layer_ids": [0, "2"]}, "`target_layer_ids`"),
        ({"hidden_act": "gelu"}, "drafter cannot be used.*gelu"),
        ({"rope_parameters": {"rope_type": "yarn", "rope_theta": 1e6, "factor": 4.0}}, "drafter cannot be used.*yarn"),
    ],
    ids=lambda value: None if isinstance(value, str) else "-".join(value),
)
def test_refuses_with_a_sentence_and_a_remedy(changes, sentence):
    with pytest.raises(CheckpointError, match=sentence) as failure:
        DrafterConfig.from_dict(fixture_config(**changes))
    assert_reads_well(failure.value)


@pytest.mark.parametrize("content", ["{", "[]", None], ids=["torn", "list", "absent"])
def test_unreadable_config(tmp_path, content):
    if content is not None:
        (tmp_path / "config.json").write_text(content)
    with pytest.raises(CheckpointError, match=r"config\.json") as failure:
        DrafterConfig.from_folder(tmp_path)
    assert_reads_well(failure.value)


@pytest.mark.parametrize(
    ("mine", "theirs", "sentence"),
    [
        ({}, {"vocab_size": 300}, "expects a vocabulary of 256, but the target has 300"),
        ({}, {"hidden_size": 128}, "expects hidden size 64, but the target has 128"),
        ({}, {"num_hidden_layers": 5, "layer_types": None}, "expects 6 target layers, but the target has 5"),
        ({"target_layer_ids": [0, 6]}, {}, "reads target layer 6, but the target's layers are 0 to 5"),
        ({"target_layer_ids": [-2]}, {}, "reads target layer -2"),
    ],
    ids=["vocabulary", "hidden", "layers", "layer-past-the-last", "negative-layer"],
)
def test_refuses_a_target_it_was_not_made_for(mine, theirs, sentence):
    config = DrafterConfig.from_dict(fixture_config(**mine))
    with pytest.raises(CheckpointError, match=sentence) as failure:
        config.check_target(fixture_target(**theirs))
    assert_reads_well(failure.value)


def test_embedding_output_is_a_layer_to_read():
    DrafterConfig.from_dict(fixture_config(target_layer_ids=[-1, 5])).check_target(fixture_target())
