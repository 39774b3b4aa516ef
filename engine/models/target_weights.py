"""From the tensors of a Hugging Face checkpoint to the fused layers of the target."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from dspark.engine.errors import CheckpointError
from dspark.engine.models.layers import Embedding, Head, Linear, WeightFormat
from dspark.engine.models.model_config import ModelConfig
from dspark.engine.models.weights import Checkpoint, RandomWeights

Weights = Checkpoint | RandomWeights


@dataclass(slots=True)
class DecoderLayer:
    """One layer's weights."""

    input_norm: Tensor  # [H]
    post_norm: Tensor  # [H]
    qkv: Linear  # H -> (Hq+2Hkv)*D
    output: Linear  # Hq*D -> H
    gate_up: Linear  # H -> 2I
    down: Linear  # I -> H
    q_norm: Tensor | None  # [D]
    k_norm: Tensor | None  # [D]


def load_layers(
    config: ModelConfig, weights: Weights, format: WeightFormat, prefix: str = "model."
) -> list[DecoderLayer]:
    """All decoder layers, `{prefix}layers.N.*`."""
    return [_load_layer(config, weights, format, f"{prefix}layers.{n}.") for n in range(config.num_layers)]


def load_norm(weights: Weights, name: str, size: int, format: WeightFormat) -> Tensor:
    """A norm weight [size] of our own, in the activation dtype."""
    return weights.read(name, (size,)).to(format.device, format.activation, copy=True)


def load_linear(
    weights: Weights, names: list[str], out_sizes: list[int], in_size: int, *, bias: bool, format: WeightFormat
) -> Linear:
    """The projections `names` (without `.weight`) fused by rows into one."""
    linear = Linear(in_size, sum(out_sizes), bias=bias, format=format)
    start = 0
    for name, size in zip(names, out_sizes, strict=True):
        weight = weights.read(f"{name}.weight", (size, in_size))
        linear.load_rows(start, weight, weights.read(f"{name}.bias", (size,)) if bias else None)
        start += size
    linear.pack()
    return linear


def load_vocabulary(config: ModelConfig, weights: Weights, format: WeightFormat) -> tuple[Embedding, Head]:
    """Embedding and head; a tied head is made of the embedding's own memory."""
    shape = (config.vocab_size, config.hidden_size)
    head_dtype = Head.storage_dtype(format)
    dtype = head_dtype if config.tie_word_embeddings else format.activation
    # A copy: the file's own pages must not stay mapped.
    stored = weights.read("model.embed_tokens.weight", shape)
    table = stored.to(format.device, dtype, copy=True)
    embedding = Embedding(table, format.activation)
    if config.tie_word_embeddings:
        refuse_untied_head(weights, stored)
        return embedding, Head(table)
    return embedding, Head(weights.read("lm_head.weight", shape).to(format.device, head_dtype, copy=True))


def refuse_untied_head(weights: Weights, embedding: Tensor) -> None:
    """Raise CheckpointError for a stored head that is not the stored `embedding` [V, H] that config.json ties it to."""
    name = "lm_head.weight"
    if name in weights and not torch.equal(weights.read(name, tuple(embedding.shape)).to(embedding.dtype), embedding):
        raise CheckpointError(
            f"config.json ties head and embedding (tie_word_embeddings), but {name} differs from the embedding",
            "Set tie_word_embeddings to false if the stored head is meant, else remove the tensor.",
        )


def _load_layer(config: ModelConfig, weights: Weights, format: WeightFormat, prefix: str) -> DecoderLayer:
    hidden, intermediate, head_dim = config.hidden_size, config.intermediate_size, config.head_dim
    q_size, kv_size = config.num_heads * head_dim, config.num_kv_heads * head_dim

    def linear(names: tuple[str, ...], out_sizes: list[int], in_size: int, bias: bool) -> Linear:
        full_names = [prefix + name for name in names]
        return load_linear(weights, full_names, out_sizes, in_size, bias=bias, format=format)

    def norm(name: str, size: int) -> Tensor:
        return load_norm(weights, f"{prefix}{name}.weight", size, format)

    qkv_names = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")
    return DecoderLayer(
        input_norm=norm("input_layernorm", hidden),
        post_norm=norm("post_attention_layernorm", hidden),
        qkv=linear(qkv_names, [q_size, kv_size, kv_size], hidden, config.qkv_bias),
        output=linear(("self_attn.o_proj",), [hidden], q_size, config.output_bias),
        gate_up=linear(("mlp.gate_proj", "mlp.up_proj"), [intermediate] * 2, hidden, config.mlp_bias),
        down=linear(("mlp.down_proj",), [hidden], intermediate, config.mlp_bias),
        q_norm=norm("self_attn.q_norm", head_dim) if config.qk_norm else None,
        k_norm=norm("self_attn.k_norm", head_dim) if config.qk_norm else None,
    )
