"""How the formats are told apart, what each says, and the sentence for everything that is none of them."""

from __future__ import annotations

import json
from typing import Any

import pytest
from draft_pair import FIXTURES
from refusals import assert_reads_well

from dspark.engine.errors import CheckpointError
from dspark.engine.models.drafter_config import DrafterConfig
from dspark.engine.models.drafter_formats import DraftFormat, DraftWindow, recognise
from dspark.engine.models.model_config import ModelConfig
from dspark.engine.models.refusals import Refusals

SPECULATORS, ZLAB, DEEPSPEC = "spec_dspark_d2t", "zlab_dflash", "dspark_rnn"
YARN = {"rope_type": "yarn", "rope_theta": 1e6, "factor": 4.0}


def raw_config(name: str, **changes: Any) -> dict[str, Any]:
    """A fixture's config.json; `layer` and `dflash` change the nested objects, "absent" removes a key."""
    raw = json.loads((FIXTURES / name / "draft" / "config.json").read_text())
    for short, key in (("layer", "transformer_layer_config"), ("dflash", "dflash_config")):
        if short in changes:
            raw[key] = without_absent(raw[key] | changes.pop(short))
    return without_absent(raw | changes)


def without_absent(raw: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in raw.items() if value != "absent"}


def spelled(value: str | dict[str, Any]) -> str | None:
    """A test id: the fixture, and what is changed in it."""
    if isinstance(value, str):
        return value if value in (SPECULATORS, ZLAB) else None
    parts = (f"{key}={'+'.join(v) if isinstance(v, dict) else json.dumps(v)}" for key, v in value.items())
    return "-".join(parts)[:60]


@pytest.mark.parametrize(
    ("name", "format", "mark"),
    [
        (DEEPSPEC, DraftFormat.DEEPSPEC, '`architectures: ["Qwen3DSparkModel"]`'),
        (SPECULATORS, DraftFormat.SPECULATORS, '`speculators_model_type: "dspark"`'),
        (ZLAB, DraftFormat.ZLAB, "`dflash_config`"),
    ],
    ids=[DEEPSPEC, SPECULATORS, ZLAB],
)
def test_recognises_the_authors_own(name: str, format: DraftFormat, mark: str) -> None:
    assert recognise(raw_config(name)) == (format, mark)
    assert DrafterConfig.from_dict(raw_config(name)).format is format


def test_reads_speculators() -> None:
    config = DrafterConfig.from_dict(raw_config(SPECULATORS))
    assert (config.block_size, config.block_width, config.samples_anchor) == (7, 7, True)
    # The peer's 1, 3, 5 count the embedding output.
    assert (config.target_layer_ids, config.num_target_layers) == ((0, 2, 4), None)
    assert (config.markov_rank, config.markov_head_type, config.mask_token_id) == (16, "rnn", 255)
    assert (config.enable_confidence_head, config.confidence_head_with_markov) == (True, False)
    assert (config.draft_vocab_size, config.backbone.vocab_size) == (150, 256)
    assert config.window == DraftWindow(8, frozenset({0}), causal=True)
    assert config.backbone.rope.theta == 1e6


def test_reads_zlab() -> None:
    config = DrafterConfig.from_dict(raw_config(ZLAB))
    assert (config.block_size, config.block_width, config.samples_anchor) == (7, 8, False)
    assert (config.target_layer_ids, config.num_target_layers) == ((0, 2, 4), 6)
    assert (config.markov_rank, config.markov_head_type, config.mask_token_id) == (0, None, 255)
    assert not config.enable_confidence_head and config.window is None and config.draft_vocab_size is None
    # Spelled `rope_theta` beside `rope_scaling: null`, as before transformers 5.
    assert config.backbone.rope.theta == 1e6


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"sample_from_anchor": False}, (6, 7)),
        ({"sample_from_anchor": "absent"}, (7, 7)),
        ({"sample_from_anchor": None, "speculators_model_type": "dflash"}, (6, 7)),
        ({"sample_from_anchor": True, "speculators_model_type": "dflash"}, (7, 7)),
        ({"sample_from_anchor": False, "block_size": 65}, (64, 65)),
    ],
    ids=["masks", "dspark", "dflash", "dflash-from-the-anchor", "largest"],
)
def test_who_drafts_the_first_token_decides_how_many_there_are(
    changes: dict[str, Any], expected: tuple[int, int]
) -> None:
    config = DrafterConfig.from_dict(raw_config(SPECULATORS, **changes))
    assert (config.block_size, config.block_width) == expected


def test_dflash_of_speculators_has_no_heads_whatever_stands_there() -> None:
    config = DrafterConfig.from_dict(raw_config(SPECULATORS, speculators_model_type="dflash"))
    assert (config.markov_rank, config.markov_head_type, config.enable_confidence_head) == (0, None, False)


@pytest.mark.parametrize(
    ("layer", "changes", "expected"),
    [
        ({}, {"sliding_window_non_causal": True}, DraftWindow(8, frozenset({0}), causal=False)),
        ({"layer_types": ["full_attention"] * 2}, {}, None),
        ({"layer_types": "absent"}, {}, None),
        ({"layer_types": "absent", "max_window_layers": 1}, {}, DraftWindow(8, frozenset({1}), causal=True)),
        ({"layer_types": "absent", "max_window_layers": 1, "use_sliding_window": False}, {}, None),
        (
            {"layer_types": ["sliding_attention"] * 2, "use_sliding_window": "absent"},
            {},
            DraftWindow(8, frozenset({0, 1}), causal=True),
        ),
    ],
    ids=["not-causal", "full", "no-layer-reaches-28", "from-layer-1", "switched-off", "all"],
)
def test_sliding_layers(layer: dict[str, Any], changes: dict[str, Any], expected: DraftWindow | None) -> None:
    assert DrafterConfig.from_dict(raw_config(SPECULATORS, layer=layer, **changes)).window == expected


def test_nested_numbers_may_come_from_another_architecture() -> None:
    layer = {"model_type": "llama", "tie_word_embeddings": True, "mlp_bias": False}
    config = DrafterConfig.from_dict(raw_config(SPECULATORS, layer=layer))
    assert config.backbone.qk_norm and not config.backbone.tie_word_embeddings


def test_one_rotation_serves_all_layers_of_speculators() -> None:
    kinds = {"full_attention": {"rope_theta": 7e5}, "sliding_attention": {"rope_theta": 2e4, "rope_type": "default"}}
    config = DrafterConfig.from_dict(raw_config(SPECULATORS, layer={"rope_parameters": kinds}))
    assert config.backbone.rope.theta == 2e4


def test_what_stands_in_dflash_config_goes_before_what_stands_beside_it() -> None:
    config = DrafterConfig.from_dict(raw_config(ZLAB, dflash={"block_size": 5, "num_target_layers": 9}))
    assert (config.block_size, config.num_target_layers) == (4, 9)
    beside = raw_config(ZLAB, dflash={"mask_token_id": "absent"}, mask_token_id=17, num_target_layers="absent")
    config = DrafterConfig.from_dict(beside)
    assert (config.mask_token_id, config.num_target_layers) == (17, None)


@pytest.mark.parametrize(
    ("name", "changes", "sentence"),
    [
        (SPECULATORS, {"speculators_model_type": "eagle3"}, r'type "eagle3", which is not supported'),
        (SPECULATORS, {"speculators_model_type": None}, "type null"),
        (SPECULATORS, {"dflash_config": {}}, r"more than one format.*\(speculators\) and.*\(z-lab DFlash\)$"),
        (SPECULATORS, {"transformer_layer_config": None}, "`transformer_layer_config`.*an object"),
        (SPECULATORS, {"aux_hidden_state_layer_ids": None}, "`aux_hidden_state_layer_ids`.*is null"),
        (SPECULATORS, {"aux_hidden_state_layer_ids": [-1, 2]}, "`aux_hidden_state_layer_ids`.*from 0 up"),
        (SPECULATORS, {"mask_token_id": None}, "`mask_token_id`.*is null"),
        (SPECULATORS, {"mask_token_id": 256}, "outside its vocabulary of 256"),
        (SPECULATORS, {"draft_vocab_size": 300}, "`draft_vocab_size`.*is 300"),
        (SPECULATORS, {"draft_vocab_size": 0}, "`draft_vocab_size`.*is 0"),
        (SPECULATORS, {"block_size": 1, "sample_from_anchor": False}, "`block_size`.*is 1.*from 2 to 65"),
        (SPECULATORS, {"sample_from_anchor": "yes"}, "`sample_from_anchor`.*true or false"),
        (SPECULATORS, {"target_hidden_size": 128}, "hidden size is 64 and its target's 128"),
        (SPECULATORS, {"projector_type": "domino"}, '`projector_type` "domino" is not supported'),
        (SPECULATORS, {"shift_label": True}, "shifted by one position"),
        (SPECULATORS, {"markov_head_type": "lstm"}, "'lstm' is not supported"),
        (SPECULATORS, {"markov_rank": 0, "confidence_head_with_markov": True}, "confidence head a Markov part"),
        (SPECULATORS, {"layer": {"layer_types": ["full_attention"]}}, "`layer_types`.*each of 2 layers"),
        (SPECULATORS, {"layer": {"layer_types": ["chunked_attention"] * 2}}, "`layer_types`"),
        (SPECULATORS, {"layer": {"sliding_window": None}}, "`sliding_window`.*is null"),
        (SPECULATORS, {"layer": {"use_sliding_window": False}}, "`use_sliding_window` is false"),
        (SPECULATORS, {"layer": {"rope_parameters": YARN}}, "drafter cannot be used: RoPE scaling `yarn`"),
        (SPECULATORS, {"layer": {"hidden_act": "gelu"}}, "drafter cannot be used: hidden_act `gelu`"),
        (SPECULATORS, {"layer": {"num_experts": 8}}, "drafter cannot be used: mixture of experts"),
        (SPECULATORS, {"layer": {"vocab_size": "absent"}}, "`vocab_size`"),
        (ZLAB, {"dflash_config": []}, "`dflash_config`.*an object"),
        (ZLAB, {"dflash": {"target_layer_ids": "absent"}}, "`target_layer_ids`.*is missing"),
        (ZLAB, {"dflash": {"mask_token_id": "absent"}}, "`mask_token_id`.*is missing"),
        (ZLAB, {"block_size": 1}, "`block_size`.*is 1"),
        (ZLAB, {"block_size": "absent"}, "`block_size`.*is missing"),
        (ZLAB, {"num_target_layers": -1}, "`num_target_layers`"),
        (ZLAB, {"layer_types": ["sliding_attention"] * 2, "sliding_window": 8, "use_sliding_window": True},
         "drafter cannot be used: sliding window attention"),
        (ZLAB, {"is_causal": True}, r"causal \(`is_causal`\)"),
        (ZLAB, {"dflash": {"causal": True}}, r"causal \(`causal`\)"),
        (ZLAB, {"dflash": {"final_logit_softcapping": 30.0}}, "`final_logit_softcapping` of 30"),
        (ZLAB, {"dflash": {"output_multiplier": 0.5}}, "`output_multiplier` of 0.5"),
        (ZLAB, {"dflash": {"input_embedding_scale": 2}}, "`input_embedding_scale` of 2"),
        (ZLAB, {"dflash": {"selector_rank": 256}}, r"selector \(DFlash 2\)"),
        (ZLAB, {"dflash": {"conv_kernel_size": 2}}, "convolutions"),
        (ZLAB, {"markov_rank": 256}, "Markov head.*the z-lab format does not know"),
        (ZLAB, {"rope_scaling": {"rope_type": "yarn", "factor": 2.0}}, "drafter cannot be used: RoPE scaling `yarn`"),
        (ZLAB, {"dflash_config": "absent"}, r"looked in config.json.*DeepSpec.*speculators.*z-lab.*DFlashDraftModel"),
    ],
    ids=spelled,
)  # fmt: skip
def test_refuses_with_a_sentence_and_a_remedy(name: str, changes: dict[str, Any], sentence: str) -> None:
    with pytest.raises(CheckpointError, match=sentence) as failure:
        DrafterConfig.from_dict(raw_config(name, **changes))
    assert_reads_well(failure.value)


def test_every_reason_is_told_and_the_first_is_raised() -> None:
    raw = raw_config(
        SPECULATORS,
        projector_type="domino",
        markov_head_type="lstm",
        mask_token_id=999,
        aux_hidden_state_layer_ids=[],
        layer={"rope_parameters": YARN, "hidden_act": "gelu", "sliding_window": -3},
    )
    words = ["domino", "gelu", "yarn", "aux_hidden_state_layer_ids", "lstm", "sliding_window", "999"]
    with pytest.raises(CheckpointError, match=words[0]) as failure:
        DrafterConfig.from_dict(raw)
    reasons = failure.value.reasons
    assert len(reasons) == len(words)
    for word, reason in zip(words, reasons, strict=True):
        assert word in str(reason)
        assert_reads_well(reason)


def test_every_reason_of_a_target() -> None:
    raw = json.loads((FIXTURES / ZLAB / "target" / "config.json").read_text())
    raw |= {"architectures": ["Qwen3MoeForCausalLM"], "num_experts": 8, "layer_types": ["sliding_attention"] * 6}
    raw |= {"sliding_window": 64, "rope_scaling": {"rope_type": "yarn"}, "quantization_config": {"quant_method": "fp8"}}
    raw |= {"hidden_act": "gelu", "num_key_value_heads": 3, "vocab_size": 0}
    refusals = Refusals()
    assert ModelConfig.read(raw, refusals) is None
    words = ["Qwen3Moe", "fp8", "num_experts", "gelu", "sliding_attention", "vocab_size", "yarn", "share 3"]
    assert len(refusals.reasons) == len(words)
    for word, reason in zip(words, refusals.reasons, strict=True):
        assert word in str(reason)
        assert_reads_well(reason)
    with pytest.raises(CheckpointError, match="Qwen3Moe") as failure:
        ModelConfig.from_dict(raw)
    assert list(map(str, failure.value.reasons)) == list(map(str, refusals.reasons))
