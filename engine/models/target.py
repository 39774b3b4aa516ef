"""The target: one packed-token decoder for the Llama family."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from dspark.engine.batch import PackedBatch
from dspark.engine.models.decoder import Decoder
from dspark.engine.models.kv_cache import KVCache
from dspark.engine.models.layers import WeightFormat
from dspark.engine.models.model_config import ModelConfig
from dspark.engine.models.target_weights import Weights, load_vocabulary
from dspark.engine.models.weights import Checkpoint, RandomWeights


@dataclass(slots=True)
class TargetOutput:
    """What one forward returns."""

    logits: Tensor  # [n, V] fp32
    features: Tensor | None  # [T, number of feature layers * H]


class Target:
    """Weights and forward. Eager on a CPU; free of host reads, so that a CUDA graph can capture it."""

    def __init__(self, config: ModelConfig, weights: Weights, format: WeightFormat) -> None:
        self.config = config
        self.device = format.device
        self.dtype = format.activation
        self.embed, self.head = load_vocabulary(config, weights, format)
        self.decoder = Decoder(config, weights, format, prefix="model.", num_positions=config.max_position_embeddings)

    @classmethod
    def load(cls, folder: Path, *, device: torch.device, dtype: str) -> Target:
        """Load a folder as `save_pretrained` writes it.

        Raises:
            CheckpointError: it cannot be read, is not supported, or holds tensors that its config.json does not name.
        """
        config, checkpoint = ModelConfig.from_folder(folder), Checkpoint(folder)
        target = cls(config, checkpoint, WeightFormat.of(dtype, device))
        checkpoint.refuse_unread()
        return target

    @classmethod
    def from_config(cls, config: ModelConfig, *, device: torch.device, dtype: str, seed: int = 0) -> Target:
        """A target of this shape with random weights."""
        absent = frozenset({"lm_head.weight"} if config.tie_word_embeddings else ())
        return cls(config, RandomWeights(seed, device, absent=absent), WeightFormat.of(dtype, device))

    def new_cache(self, num_pages: int, page_size: int) -> KVCache:
        """An empty cache for this target, page 0 included in the count."""
        return self.decoder.new_cache(num_pages, page_size)

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
        residual = self.embed(batch.token_ids)  # [T, H]
        features = _FeatureBuffer(feature_layers, residual)
        features.store(-1, residual)
        hidden = self.decoder(
            residual,
            batch.positions,
            cache,
            cache_rows=batch.cache_rows,
            attention=batch.attention,
            on_layer=features.store if feature_layers else None,
        )
        return TargetOutput(logits=self._logits(hidden, logit_rows, logits_out), features=features.tensor)

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
