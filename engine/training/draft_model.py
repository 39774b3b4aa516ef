"""The drafter as it is trained: fp32 weights under the names of the DeepSpec layout, products in a narrower dtype."""

from __future__ import annotations

from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from dspark.engine.models.drafter_config import DrafterConfig
from dspark.engine.models.layers import Embedding
from dspark.engine.models.rope import RotaryTable
from dspark.engine.training.device_batch import BlockLayout
from dspark.engine.training.markov import TrainedMarkovHead
from dspark.kernels.rope_cache.reference import rotate_half


class Weight(nn.Module):
    """A norm's weight, or a projection's without bias."""

    def __init__(self, *shape: int, std: float | None) -> None:
        super().__init__()
        values = torch.ones(shape) if std is None else torch.empty(shape).normal_(std=std)
        self.weight = nn.Parameter(values)


class Attention(nn.Module):
    """Projections and per-head norms of one layer."""

    def __init__(self, hidden: int, q_size: int, kv_size: int, head_dim: int, *, std: float, out_std: float) -> None:
        super().__init__()
        self.q_proj = Weight(q_size, hidden, std=std)
        self.k_proj = Weight(kv_size, hidden, std=std)
        self.v_proj = Weight(kv_size, hidden, std=std)
        self.o_proj = Weight(hidden, q_size, std=out_std)
        self.q_norm = Weight(head_dim, std=None)
        self.k_norm = Weight(head_dim, std=None)


class Mlp(nn.Module):
    """Projections of one layer's gated MLP."""

    def __init__(self, hidden: int, intermediate: int, *, std: float, out_std: float) -> None:
        super().__init__()
        self.gate_proj = Weight(intermediate, hidden, std=std)
        self.up_proj = Weight(intermediate, hidden, std=std)
        self.down_proj = Weight(hidden, intermediate, std=out_std)


class Layer(nn.Module):
    """Weights of one layer."""

    def __init__(self, config: DrafterConfig) -> None:
        super().__init__()
        backbone = config.backbone
        hidden, head_dim = backbone.hidden_size, backbone.head_dim
        std = hidden**-0.5
        # What a layer adds to the stream starts smaller, the more layers add to it.
        out_std = std / (2 * backbone.num_layers) ** 0.5
        self.input_layernorm = Weight(hidden, std=None)
        self.post_attention_layernorm = Weight(hidden, std=None)
        q_size, kv_size = backbone.num_heads * head_dim, backbone.num_kv_heads * head_dim
        self.self_attn = Attention(hidden, q_size, kv_size, head_dim, std=std, out_std=out_std)
        self.mlp = Mlp(hidden, backbone.intermediate_size, std=std, out_std=out_std)


class ConfidenceHead(nn.Module):
    """One dot product a position, zero at first."""

    def __init__(self, columns: int) -> None:
        super().__init__()
        self.proj = nn.Linear(columns, 1)
        nn.init.zeros_(self.proj.weight)
        nn.init.zeros_(self.proj.bias)


class TrainableDrafter(nn.Module):
    """Backbone and heads. Embedding and head are the target's, and are not trained.

    Args:
        embed: the target's embedding.
        dtype: of products and activations; weights are fp32.
        num_positions: text positions that a block can reach.
    """

    def __init__(self, config: DrafterConfig, *, embed: Embedding, dtype: torch.dtype, num_positions: int) -> None:
        super().__init__()
        backbone = config.backbone
        hidden = backbone.hidden_size
        self.config = config
        self.dtype = dtype
        features = len(config.target_layer_ids) * hidden
        self.fc = Weight(hidden, features, std=features**-0.5)
        self.hidden_norm = Weight(hidden, std=None)
        self.layers = nn.ModuleList(Layer(config) for _ in range(backbone.num_layers))
        self.norm = Weight(hidden, std=None)
        self.markov_head = TrainedMarkovHead(config) if config.markov_head_type is not None else None
        columns = hidden + (config.markov_rank if config.confidence_head_with_markov else 0)
        self.confidence_head = ConfidenceHead(columns) if config.enable_confidence_head else None
        self._embed = embed
        self._rope = RotaryTable(
            backbone.rope, head_dim=backbone.head_dim, num_positions=num_positions, device=embed.weight.device
        )
        self.to(embed.weight.device)

    def forward(self, features: Tensor, blocks: BlockLayout) -> Tensor:
        """features [B*S, n*H] -> hidden states [B*A*G, H] of the blocks' slots behind the final norm."""
        config, eps = self.config.backbone, self.config.backbone.rms_norm_eps
        num_groups, num_slots, _ = blocks.visible.shape
        group = config.num_heads // config.num_kv_heads
        with torch.no_grad():
            stream = self._embed(blocks.block_tokens.view(-1)).to(self.dtype)  # [B*A*G, H]
            # Query heads that share a K/V head are queries of it, so neither K nor V is repeated.
            seen = blocks.visible.repeat_interleave(group, dim=1)[:, None]
            bias = torch.zeros(seen.shape, dtype=self.dtype, device=seen.device).masked_fill_(~seen, float("-inf"))
        angles = self._rope.gather(blocks.block_positions)
        context_k, context_v = self._context(features, blocks.context_positions)  # [B*S, L, Hkv, D]
        for index, layer in enumerate(self._layers()):
            attention, mlp = layer.self_attn, layer.mlp
            qkv = self._product(
                self._norm(stream, layer.input_layernorm), attention.q_proj, attention.k_proj, attention.v_proj
            )
            heads = qkv.view(-1, config.num_heads + 2 * config.num_kv_heads, config.head_dim)
            q, k, v = heads.split((config.num_heads, config.num_kv_heads, config.num_kv_heads), dim=1)
            q = rotate_half(self._norm(q, attention.q_norm), *angles)
            k = rotate_half(self._norm(k, attention.k_norm), *angles)
            attended = _attend(
                _by_kv_head(q.unflatten(1, (config.num_kv_heads, group)), num_groups),
                _joined(context_k[:, index], k, blocks.num_rows, num_groups),
                _joined(context_v[:, index], v, blocks.num_rows, num_groups),
                bias,
            )  # [B*n, Hkv, a*G*group, D]
            attended = attended.view(num_groups, config.num_kv_heads, num_slots, group, config.head_dim)
            attended = attended.permute(0, 2, 1, 3, 4).reshape(num_groups * num_slots, -1)
            stream = stream + self._product(attended, attention.o_proj)
            gate, up = self._product(
                self._norm(stream, layer.post_attention_layernorm), mlp.gate_proj, mlp.up_proj
            ).chunk(2, dim=-1)
            stream = stream + self._product(F.silu(gate) * up, mlp.down_proj)
        return F.rms_norm(stream, (config.hidden_size,), self._cast(self.norm), eps)

    def confidence(self, hidden: Tensor, previous_embedding: Tensor | None) -> Tensor | None:
        """hidden [P, H], W1 of the tokens before [P, r] -> confidence logits [P] fp32."""
        if self.confidence_head is None:
            return None
        seen = hidden
        if self.config.confidence_head_with_markov and previous_embedding is not None:
            seen = torch.cat((hidden, previous_embedding), dim=1)
        return F.linear(seen.float(), self.confidence_head.proj.weight, self.confidence_head.proj.bias)[:, 0]

    def _context(self, features: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        """K and V [B*S, L, Hkv, D] of the texts, for all layers by one product."""
        config = self.config.backbone
        context = self._norm(self._product(features, self.fc), self.hidden_norm)
        weights = [getattr(layer.self_attn, name) for layer in self._layers() for name in ("k_proj", "v_proj")]
        kv = self._product(context, *weights)
        kv = kv.view(-1, config.num_layers, 2, config.num_kv_heads, config.head_dim)
        gains = torch.stack([self._cast(layer.self_attn.k_norm) for layer in self._layers()])  # [L, D]
        k = F.rms_norm(kv[:, :, 0], (config.head_dim,), None, config.rms_norm_eps) * gains[:, None]
        cos, sin = self._rope.gather(positions)  # [B*S, 1, D]
        return rotate_half(k, cos[:, None], sin[:, None]), kv[:, :, 1]

    def _layers(self) -> list[Layer]:
        return cast("list[Layer]", list(self.layers))

    def _norm(self, x: Tensor, norm: Weight) -> Tensor:
        return F.rms_norm(x, x.shape[-1:], self._cast(norm), self.config.backbone.rms_norm_eps)

    def _product(self, x: Tensor, *projections: Weight) -> Tensor:
        """x times the projections, one behind the other."""
        weights = [self._cast(projection) for projection in projections]
        return F.linear(x, weights[0] if len(weights) == 1 else torch.cat(weights))

    def _cast(self, module: Weight) -> Tensor:
        return module.weight.to(self.dtype)


def _attend(q: Tensor, k: Tensor, v: Tensor, bias: Tensor) -> Tensor:
    """q [B, Hkv, N, D], k, v [B, Hkv, K, D], bias [B, 1, N, K] -> [B, Hkv, N, D]."""
    if not q.is_cuda:
        return F.scaled_dot_product_attention(q, k, v, attn_mask=bias)
    # The one fused kernel that takes a bias; the fallback would hold the scores of all queries.
    with sdpa_kernel(SDPBackend.EFFICIENT_ATTENTION):
        return F.scaled_dot_product_attention(q, k, v, attn_mask=bias)


def _by_kv_head(q: Tensor, num_groups: int) -> Tensor:
    """q [B*n*N, Hkv, group, D] -> [B*n, Hkv, N*group, D]."""
    num_kv_heads, _, head_dim = q.shape[1:]
    q = q.view(num_groups, -1, *q.shape[1:]).transpose(1, 2)
    return q.reshape(num_groups, num_kv_heads, -1, head_dim)


def _joined(context: Tensor, block: Tensor, num_rows: int, num_groups: int) -> Tensor:
    """K or V of texts [B*S, Hkv, D] and of blocks [B*n*N, Hkv, D] -> [B*n, Hkv, S + N, D]."""
    context = context.view(num_rows, 1, -1, *context.shape[1:])
    context = context.expand(-1, num_groups // num_rows, -1, -1, -1).flatten(0, 1)
    return torch.cat((context, block.view(num_groups, -1, *block.shape[1:])), dim=1).transpose(1, 2)
