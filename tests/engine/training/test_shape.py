"""Configurations of drafters, and the token of slots that are to be filled."""

import pytest
from byte_tokenizer import save_byte_tokenizer
from refusals import assert_reads_well
from tiny_models import TINY_MODELS
from tiny_training import TARGET

from dspark.engine.errors import UsageError
from dspark.engine.jobs.tokenizer import Tokenizer
from dspark.engine.models.drafter_config import DrafterConfig
from dspark.engine.models.model_config import ModelConfig
from dspark.engine.training.settings import DrafterShape
from dspark.engine.training.shape import choose_mask_token, config_document, drafter_config

KINDS = ("vanilla", "gated", "rnn", "none")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", TINY_MODELS)
def test_what_is_written_reads_back_and_fits_the_target(name, kind, tiny_model):
    target = ModelConfig.from_folder(tiny_model(name).folder)
    shape = DrafterShape(layers=2, markov_head=kind, markov_rank=8, block_size=5)
    config = drafter_config(shape, target, mask_token_id=7)
    document = config_document(config, num_anchors=4, dtype="bfloat16")
    assert DrafterConfig.from_dict(document) == config
    config.check_target(target)
    assert (config.markov_rank, config.markov_head_type) == ((0, None) if kind == "none" else (8, kind))
    assert ("markov_head_type" in document) is ("confidence_head_with_markov" in document) is (kind != "none")


def test_transformers_reads_the_same_backbone():
    from transformers import AutoConfig

    target = ModelConfig.from_folder(TARGET)
    document = config_document(drafter_config(DrafterShape(), target, mask_token_id=7), num_anchors=4, dtype="bfloat16")
    fields = {key: value for key, value in document.items() if key not in ("architectures", "model_type")}
    peer = AutoConfig.for_model(document["model_type"], **fields)
    assert (peer.num_hidden_layers, peer.head_dim, peer.rope_parameters["rope_theta"]) == (3, 16, 1e6)


@pytest.mark.parametrize(
    ("shape", "mask"),
    [
        (DrafterShape(feature_layers=(0, 6)), 3),
        (DrafterShape(feature_layers=(-2,)), 3),
        (DrafterShape(feature_layers=()), 3),
        (DrafterShape(), 256),
    ],
    ids=["behind_the_last", "before_the_embedding", "none", "mask"],
)
def test_layers_and_tokens_that_the_target_lacks_are_refused(shape, mask):
    with pytest.raises(UsageError) as refused:
        drafter_config(shape, ModelConfig.from_folder(TARGET), mask_token_id=mask)
    assert_reads_well(refused.value)


def test_the_mask_is_a_token_that_no_text_holds(tmp_path):
    save_byte_tokenizer(tmp_path)
    tokenizer = Tokenizer.load(tmp_path)
    # Rows behind the tokenizer's last one, then special tokens without a meaning of their own (<pad> has none here).
    assert choose_mask_token(300, tokenizer, set()) == 256
    assert choose_mask_token(256, tokenizer, {5}) == 0
    assert choose_mask_token(256, tokenizer, {0}) == 255
    assert choose_mask_token(256, None, {255, 254}) == 253
    with pytest.raises(UsageError, match="every token") as refused:
        choose_mask_token(4, None, set(range(4)))
    assert_reads_well(refused.value)
