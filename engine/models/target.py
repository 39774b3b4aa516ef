"""The target: one packed-token decoder for the Llama family."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from dspark.engine.batch import PackedBatch
from dspark.engine.errors import UsageError
from dspark.engine.models.kv_cache import KVCache
from dspark.engine.models.layers import WeightFormat
from dspark.engine.models.model_config import ModelConfig
from dspark.engine.models.rope import Angles, RotaryTable
from dspark.engine.models.target_weights import DecoderLayer, load_layers, load_norm, load_vocabulary
from dspark.engine.models.weights import Checkpoint, RandomWeights
from dspark.kernels import rms_norm, rope_attention

# A draft block's positions may lie past the context limit by its length.
POSITIONS_PAST_CONTEXT = 64


@dataclass(slots=True)
class TargetOutput:
    """What one forward returns."""

    logits: Tensor  # [n, V] fp32
    features: Tensor | None  # [T, number of feature layers * H]


class Target:
    """Weights and forward. Eager on a CPU; free of host reads, so that a CUDA graph can capture it."""

    def __init__(self, config: ModelConfig, weights: Checkpoint | RandomWeights, format: WeightFormat) -> None:
        self.config = config
        self.device = format.device
        self.dtype = format.activation
        self.format = format
        self.embed, self.head = load_vocabulary(config, weights, format)
        self.layers: list[DecoderLayer] = load_layers(config, weights, format)
        self.norm = load_norm(weights, "model.norm.weight", config.hidden_size, format)
        self.rope = RotaryTable(
            config.rope,
            head_dim=config.head_dim,
            num_positions=config.max_position_embeddings + POSITIONS_PAST_CONTEXT,
            device=format.device,
        )

    @classmethod
    def load(cls, folder: Path, *, device: torch.device, dtype: str, max_context: int | None = None) -> Target:
        """Load a folder as `save_pretrained` writes it. `max_context` lowers the checkpoint's own limit."""
        config = _limited(ModelConfig.from_folder(folder), max_context)
        return cls(config, Checkpoint(folder), WeightFormat.of(dtype, device))

    @classmethod
    def from_config(
        cls, config: ModelConfig, *, device: torch.device, dtype: str, seed: int = 0, max_context: int | None = None
    ) -> Target:
        """A target of this shape with random weights."""
        return cls(_limited(config, max_context), RandomWeights(seed, device), WeightFormat.of(dtype, device))

    def new_cache(self, num_pages: int, page_size: int) -> KVCache:
        """An empty cache for this target, page 0 included in the count."""
        return KVCache.zeros(
            num_pages,
            page_size,
            num_layers=self.config.num_layers,
            num_kv_heads=self.config.num_kv_heads,
            head_dim=self.config.head_dim,
            dtype=self.dtype,
            device=self.device,
        )

    @torch.inference_mode()
    def forward(
        self,
        batch: PackedBatch,
        cache: KVCache,
        *,
        logit_rows: Tensor | None = None,
        feature_layers: tuple[int, ...] = (),
        logits_out: Tensor | None = None,
    ) -> TargetOutput:
        """Run the batch, writing its K and V into the cache.

        logit_rows: packed rows whose logits are wanted (None: all; empty: the head is not run).
        logits_out: memory [n, V] fp32 that the logits are to be written to.
        Feature of layer l is the residual stream behind it (-1: the embedding; the last layer: after the final norm).
        """
        config = self.config
        residual = self.embed(batch.token_ids)  # [T, H]
        features = _FeatureBuffer(feature_layers, residual)
        features.store(-1, residual)
        angles = self.rope.angles(batch.positions)
        eps = config.rms_norm_eps
        for index, layer in enumerate(self.layers):
            qkv = layer.qkv(residual, norm=layer.input_norm, eps=eps)
            attended = self._attention(layer, qkv, angles, batch, cache.k_layers[index], cache.v_layers[index])
            layer.output(attended, residual=residual)
            hidden = layer.gate_up(residual, norm=layer.post_norm, eps=eps, activation="silu_mul")
            layer.down(hidden, residual=residual)
            if index + 1 < config.num_layers:
                features.store(index, residual)
        hidden = rms_norm(residual, self.norm, eps=eps)
        features.store(config.num_layers - 1, hidden)
        return TargetOutput(logits=self._logits(hidden, logit_rows, logits_out), features=features.tensor)

    def _attention(
        self, layer: DecoderLayer, qkv: Tensor, angles: Angles, batch: PackedBatch, k: Tensor, v: Tensor
    ) -> Tensor:
        """qkv [T, (Hq+2Hkv)*D] -> what the queries see, [T, Hq*D]."""
        config = self.config
        cos, sin, angle_rows = angles
        attended = rope_attention(
            qkv,
            cos,
            sin,
            batch.attention,
            k_cache=k,
            v_cache=v,
            slots=batch.slots,
            num_heads=config.num_heads,
            num_kv_heads=config.num_kv_heads,
            q_norm=layer.q_norm,
            k_norm=layer.k_norm,
            eps=config.rms_norm_eps,
            angle_rows=angle_rows,
            scale=config.head_dim**-0.5,
        )
        return attended.flatten(1)

    def _logits(self, hidden: Tensor, logit_rows: Tensor | None, out: Tensor | None) -> Tensor:
        if logit_rows is None:
            return self.head(hidden, out)
        if logit_rows.numel() == 0:
            return torch.empty(0, self.config.vocab_size, dtype=torch.float32, device=self.device)
        return self.head(hidden.index_select(0, logit_rows), out)


class _FeatureBuffer:
    """Collects the wanted layers' states side by side, in the order asked for."""

    def __init__(self, layers: tuple[int, ...], residual: Tensor) -> None:
        self.layers = layers
        self.hidden_size = residual.shape[1]
        shape = (residual.shape[0], len(layers) * self.hidden_size)
        self.tensor = residual.new_empty(shape) if layers else None

    def store(self, layer: int, state: Tensor) -> None:
        if self.tensor is None:
            return
        for place, wanted in enumerate(self.layers):
            if wanted == layer:
                self.tensor[:, place * self.hidden_size : (place + 1) * self.hidden_size].copy_(state)


def _limited(config: ModelConfig, max_context: int | None) -> ModelConfig:
    if max_context is None:
        return config
    limit = config.max_position_embeddings
    if not 1 <= max_context <= limit:
        raise UsageError(
            f"A context of {max_context} tokens was asked for; the target allows 1 to {limit}.",
            "Lower the context limit.",
        )
    return replace(config, max_position_embeddings=max_context)
