"""From the shape that was asked for to the drafter's whole configuration, and to its config.json."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from dspark.engine.errors import UsageError
from dspark.engine.models.drafter_config import DrafterConfig
from dspark.engine.models.drafter_formats import ARCHITECTURE
from dspark.engine.models.dummy import derived_drafter_config
from dspark.engine.models.model_config import ModelConfig
from dspark.engine.training.settings import NO_MARKOV_HEAD, DrafterShape

if TYPE_CHECKING:
    from dspark.engine.jobs.tokenizer import Tokenizer


def drafter_config(shape: DrafterShape, target: ModelConfig, *, mask_token_id: int) -> DrafterConfig:
    """The configuration of such a drafter for `target`.

    Raises:
        UsageError: a feature layer or the mask token is none of the target's.
    """
    derived = derived_drafter_config(target)
    layers = derived.target_layer_ids if shape.feature_layers is None else shape.feature_layers
    unknown = [layer for layer in layers if not -1 <= layer < target.num_layers]
    if unknown or not layers:
        raise UsageError(
            f"feature_layers names layer {unknown[0]}" if unknown else "feature_layers is empty",
            f"The target's layers are 0 to {target.num_layers - 1}, and -1 is its embedding.",
        )
    if not 0 <= mask_token_id < target.vocab_size:
        raise UsageError(f"mask_token_id is {mask_token_id}", f"Give a token id below {target.vocab_size}.")
    markov = shape.markov_head != NO_MARKOV_HEAD
    return replace(
        derived,
        # The eps of Qwen3's norms; where a text ends is the target's affair.
        backbone=replace(derived.backbone, num_layers=shape.layers, rms_norm_eps=1e-6, eos_token_ids=()),
        block_size=shape.block_size,
        mask_token_id=mask_token_id,
        target_layer_ids=tuple(layers),
        markov_rank=shape.markov_rank if markov else 0,
        markov_head_type=shape.markov_head if markov else None,
        confidence_head_with_markov=markov,
    )


def choose_mask_token(vocab_size: int, tokenizer: Tokenizer | None, used: Collection[int]) -> int:
    """A token that no text holds: a row behind the tokenizer's last one, else a special token, else any.

    Raises:
        UsageError: the texts hold every token there is.
    """
    special, last = ([], vocab_size) if tokenizer is None else tokenizer.spare_tokens()
    candidates = [*range(last, vocab_size), *special, *range(vocab_size - 1, -1, -1)]
    for token in candidates:
        if token not in used:
            return token
    raise UsageError("the texts hold every token of the vocabulary", "Name one with --mask-token-id.")


def config_document(config: DrafterConfig, *, num_anchors: int, dtype: str) -> dict[str, Any]:
    """config.json in the DeepSpec layout."""
    backbone = config.backbone
    rope: dict[str, Any] = {"rope_theta": backbone.rope.theta, "rope_type": "default"}
    scaling = backbone.rope.llama3
    if scaling is not None:
        rope |= {
            "rope_type": "llama3",
            "factor": scaling.factor,
            "low_freq_factor": scaling.low_freq_factor,
            "high_freq_factor": scaling.high_freq_factor,
            "original_max_position_embeddings": scaling.original_max_positions,
        }
    document: dict[str, Any] = {
        "architectures": [ARCHITECTURE],
        "model_type": "qwen3",
        "attention_bias": False,
        "attention_dropout": 0.0,
        "head_dim": backbone.head_dim,
        "hidden_act": "silu",
        "hidden_size": backbone.hidden_size,
        "intermediate_size": backbone.intermediate_size,
        "max_position_embeddings": backbone.max_position_embeddings,
        "num_attention_heads": backbone.num_heads,
        "num_key_value_heads": backbone.num_kv_heads,
        "num_hidden_layers": backbone.num_layers,
        "num_target_layers": config.num_target_layers,
        "rms_norm_eps": backbone.rms_norm_eps,
        "rope_parameters": rope,
        "vocab_size": backbone.vocab_size,
        "tie_word_embeddings": False,
        "dtype": dtype,
        "layer_types": ["full_attention"] * backbone.num_layers,
        "block_size": config.block_size,
        "mask_token_id": config.mask_token_id,
        "target_layer_ids": list(config.target_layer_ids),
        "num_anchors": num_anchors,
        "enable_confidence_head": config.enable_confidence_head,
        "markov_rank": config.markov_rank,
    }
    if config.markov_head_type is not None:
        document |= {"markov_head_type": config.markov_head_type}
    if config.confidence_head_with_markov:
        document |= {"confidence_head_with_markov": True}
    return document
