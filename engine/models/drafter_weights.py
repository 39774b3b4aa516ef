"""From the tensors of a drafter checkpoint to the drafter's fused layers and heads."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from dspark.engine.models.draft_vocabulary import DraftVocabulary
from dspark.engine.models.drafter_config import DrafterConfig
from dspark.engine.models.drafter_formats import DraftFormat
from dspark.engine.models.layers import Embedding, Head, Linear, WeightFormat
from dspark.engine.models.markov_head import MarkovHead
from dspark.engine.models.target_weights import Weights, load_linear, refuse_untied_head


@dataclass(slots=True)
class ConfidenceHead:
    """One dot product a position."""

    weight: Tensor  # [1, H] or [1, H + r]
    bias: Tensor  # [1]


def load_context_kv(config: DrafterConfig, weights: Weights, format: WeightFormat) -> Linear:
    """K and V projections of all layers as one: H -> [Ld, 2, Hkv, D]."""
    backbone = config.backbone
    names = [f"layers.{n}.self_attn.{kind}_proj" for n in range(backbone.num_layers) for kind in "kv"]
    sizes = [backbone.num_kv_heads * backbone.head_dim] * len(names)
    return load_linear(weights, names, sizes, backbone.hidden_size, bias=backbone.qkv_bias, format=format)


def load_markov_head(
    config: DrafterConfig, weights: Weights, format: WeightFormat, *, vocabulary: DraftVocabulary | None
) -> MarkovHead | None:
    """The Markov head, None for rank 0. W1 knows every token of the target, W2 those that can be drafted."""
    if config.markov_head_type is None:
        return None
    rank, hidden, vocab = config.markov_rank, config.backbone.hidden_size, config.backbone.vocab_size
    w2 = _load_wide(weights, "markov_head.markov_w2.weight", (config.head_vocab_size, rank), format)
    head = MarkovHead(
        kind=config.markov_head_type,
        w1=_load_wide(weights, "markov_head.markov_w1.weight", (vocab, rank), format),
        w2=_arranged(w2, vocabulary),
    )
    if head.kind == "gated":
        head.weight = _load_wide(weights, "markov_head.gate_proj.weight", (rank, hidden + rank), format)
        head.bias = _load_wide(weights, "markov_head.gate_proj.bias", (rank,), format)
    if head.kind == "rnn":
        head.weight = _load_wide(weights, "markov_head.joint_proj.weight", (3 * rank, 2 * rank + hidden), format)
        head.bias = _load_wide(weights, "markov_head.joint_proj.bias", (3 * rank,), format)
    return head


def load_confidence_head(config: DrafterConfig, weights: Weights, format: WeightFormat) -> ConfidenceHead | None:
    """The confidence head, None if the checkpoint has none."""
    if not config.enable_confidence_head:
        return None
    columns = config.backbone.hidden_size + (config.markov_rank if config.confidence_head_with_markov else 0)
    return ConfidenceHead(
        weight=_load_wide(weights, "confidence_head.proj.weight", (1, columns), format),
        bias=_load_wide(weights, "confidence_head.proj.bias", (1,), format),
    )


def load_embedding(config: DrafterConfig, weights: Weights, format: WeightFormat, *, shared: Embedding) -> Embedding:
    """The checkpoint's own embedding, the target's if it has none or the same."""
    name = "embed_tokens.weight"
    if name not in weights or config.format is DraftFormat.ZLAB:
        return shared
    shape = (config.backbone.vocab_size, config.backbone.hidden_size)
    table = weights.read(name, shape).to(format.device, format.activation, copy=True)
    return shared if _same(table, shared.weight) else Embedding(table, format.activation)


def load_lm_head(
    config: DrafterConfig,
    weights: Weights,
    format: WeightFormat,
    *,
    shared: Head,
    vocabulary: DraftVocabulary | None,
) -> Head:
    """The checkpoint's own head, the target's if it has none or the same. A reduced vocabulary needs its own."""
    if vocabulary is not None:
        stored = weights.read("lm_head.weight", (config.head_vocab_size, config.backbone.hidden_size))
        return Head(_arranged(stored.to(format.device, Head.storage_dtype(format), copy=True), vocabulary))
    tied = config.backbone.tie_word_embeddings and "embed_tokens.weight" in weights
    name = "embed_tokens" if tied else "lm_head"
    if f"{name}.weight" not in weights or config.format is DraftFormat.ZLAB:
        return shared
    stored = weights.read(f"{name}.weight", (config.backbone.vocab_size, config.backbone.hidden_size))
    if tied:
        refuse_untied_head(weights, stored)
    table = stored.to(format.device, Head.storage_dtype(format), copy=True)
    return shared if _same(table, shared.weight) else Head(table)


def _load_wide(weights: Weights, name: str, shape: tuple[int, ...], format: WeightFormat) -> Tensor:
    # The heads' sums are taken in fp32, and a CPU would convert narrow weights again at every step.
    return weights.read(name, shape).to(format.device, Head.storage_dtype(format), copy=True)


def _arranged(table: Tensor, vocabulary: DraftVocabulary | None) -> Tensor:
    return table if vocabulary is None else vocabulary.arrange(table)


def _same(own: Tensor, shared: Tensor) -> bool:
    return own.shape == shared.shape and torch.equal(own, shared.to(own.dtype))
