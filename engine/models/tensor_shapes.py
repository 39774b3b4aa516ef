"""The tensors that a config.json asks for. Loading reads exactly these; inspection compares them with the headers."""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass, field

from dspark.engine.models.drafter_config import DrafterConfig
from dspark.engine.models.drafter_formats import DraftFormat
from dspark.engine.models.model_config import ModelConfig

Shapes = dict[str, tuple[int, ...]]
# Of the verifier's head and norm, which speculators compares with while it trains.
_TRAINING_ONLY = frozenset({"verifier_lm_head.weight", "verifier_norm.weight"})


@dataclass(slots=True)
class ExpectedTensors:
    """Names and shapes."""

    required: Shapes
    optional: Shapes = field(default_factory=dict)  # read if they are there
    whole_numbers: frozenset[str] = frozenset()  # those of the names that are no floats
    unused: frozenset[str] = frozenset()  # may be there, and nobody reads them


def unused_tensors(config: DrafterConfig) -> frozenset[str]:
    """Tensors of a drafter that only training has a use for."""
    return _TRAINING_ONLY if config.format is DraftFormat.SPECULATORS else frozenset()


def target_tensors(config: ModelConfig) -> ExpectedTensors:
    """What a target's config.json asks for."""
    vocabulary = (config.vocab_size, config.hidden_size)
    expected = ExpectedTensors({"model.embed_tokens.weight": vocabulary, **_layers(config, "model.")})
    head = expected.optional if config.tie_word_embeddings else expected.required
    head["lm_head.weight"] = vocabulary
    return expected


def drafter_tensors(config: DrafterConfig, present: Container[str]) -> ExpectedTensors:
    """What a drafter's config.json asks for; `present`: the names there are, which decide whose vocabulary it uses."""
    backbone = config.backbone
    hidden, rank, rows = backbone.hidden_size, config.markov_rank, config.head_vocab_size
    expected = ExpectedTensors(_layers(backbone, ""), unused=unused_tensors(config))
    required, optional = expected.required, expected.optional
    required["fc.weight"] = (hidden, len(config.target_layer_ids) * hidden)
    required["hidden_norm.weight"] = (hidden,)
    if config.format is not DraftFormat.ZLAB:
        reduced = rows < backbone.vocab_size
        optional["embed_tokens.weight"] = (backbone.vocab_size, hidden)
        (required if reduced else optional)["lm_head.weight"] = (rows, hidden)
        if reduced or (config.draft_vocab_size is not None and "d2t" in present):
            required["d2t"] = (rows,)
            optional["t2d"] = (backbone.vocab_size,)
            expected.whole_numbers = frozenset({"d2t", "t2d"})
    if config.markov_head_type is not None:
        required["markov_head.markov_w1.weight"] = (backbone.vocab_size, rank)
        required["markov_head.markov_w2.weight"] = (rows, rank)
    if config.markov_head_type == "gated":
        required["markov_head.gate_proj.weight"] = (rank, hidden + rank)
        required["markov_head.gate_proj.bias"] = (rank,)
    if config.markov_head_type == "rnn":
        required["markov_head.joint_proj.weight"] = (3 * rank, 2 * rank + hidden)
        required["markov_head.joint_proj.bias"] = (3 * rank,)
    if config.enable_confidence_head:
        required["confidence_head.proj.weight"] = (1, hidden + (rank if config.confidence_head_with_markov else 0))
        required["confidence_head.proj.bias"] = (1,)
    return expected


def _layers(config: ModelConfig, prefix: str) -> Shapes:
    """Decoder layers and the final norm."""
    hidden, inner, head_dim = config.hidden_size, config.intermediate_size, config.head_dim
    query, key = config.num_heads * head_dim, config.num_kv_heads * head_dim
    linear = {
        "self_attn.q_proj": (query, hidden, config.qkv_bias),
        "self_attn.k_proj": (key, hidden, config.qkv_bias),
        "self_attn.v_proj": (key, hidden, config.qkv_bias),
        "self_attn.o_proj": (hidden, query, config.output_bias),
        "mlp.gate_proj": (inner, hidden, config.mlp_bias),
        "mlp.up_proj": (inner, hidden, config.mlp_bias),
        "mlp.down_proj": (hidden, inner, config.mlp_bias),
    }
    norms = {"input_layernorm": hidden, "post_attention_layernorm": hidden}
    if config.qk_norm:
        norms |= {"self_attn.q_norm": head_dim, "self_attn.k_norm": head_dim}
    shapes: Shapes = {f"{prefix}norm.weight": (hidden,)}
    for layer in range(config.num_layers):
        start = f"{prefix}layers.{layer}."
        for name, size in norms.items():
            shapes[f"{start}{name}.weight"] = (size,)
        for name, (outputs, inputs, bias) in linear.items():
            shapes[f"{start}{name}.weight"] = (outputs, inputs)
            if bias:
                shapes[f"{start}{name}.bias"] = (outputs,)
    return shapes
