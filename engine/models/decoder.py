"""The stack of layers that target and drafter share."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from dspark.engine.models.kv_cache import KVCache
from dspark.engine.models.layers import WeightFormat
from dspark.engine.models.model_config import ModelConfig
from dspark.engine.models.rope import RotaryTable
from dspark.engine.models.target_weights import DecoderLayer, Weights, load_layers, load_norm
from dspark.kernels import AttentionLayout, rms_norm, rope_attention


class Decoder:
    """Layers, final norm and positions. Its forward waits for no device: CUDA graphs can hold it."""

    def __init__(
        self,
        config: ModelConfig,
        weights: Weights,
        format: WeightFormat,
        *,
        prefix: str,
        num_positions: int,
        windowed: frozenset[int] = frozenset(),
    ) -> None:
        self.config = config
        self.windowed = windowed  # layers that run with the window's layout
        self.layers: list[DecoderLayer] = load_layers(config, weights, format, prefix)
        self.norm = load_norm(weights, f"{prefix}norm.weight", config.hidden_size, format)
        self.rope = RotaryTable(
            config.rope, head_dim=config.head_dim, num_positions=num_positions, device=format.device
        )
        self._dtype = format.activation
        self._device = format.device

    def new_cache(self, num_pages: int, page_size: int) -> KVCache:
        """An empty cache for these layers, page 0 included in the count."""
        return KVCache.zeros(
            num_pages,
            page_size,
            num_layers=self.config.num_layers,
            num_kv_heads=self.config.num_kv_heads,
            head_dim=self.config.head_dim,
            dtype=self._dtype,
            device=self._device,
        )

    def __call__(
        self,
        residual: Tensor,
        positions: Tensor,
        cache: KVCache,
        *,
        cache_rows: Tensor,
        attention: AttentionLayout,
        window_attention: AttentionLayout | None = None,
        on_layer: Callable[[int, Tensor], None] | None = None,
    ) -> Tensor:
        """residual [T, H] (written over), positions [T] -> hidden states [T, H] behind the final norm.

        K and V go to `cache_rows` [T]. Windowed layers take `window_attention`. `on_layer` sees the stream behind each
        layer but the last, and what is returned as that of the last.
        """
        eps = self.config.rms_norm_eps
        cos, sin, angle_rows = self.rope.angles(positions)
        last = len(self.layers) - 1
        for index, layer in enumerate(self.layers):
            layout = window_attention if index in self.windowed else attention
            assert layout is not None, "windowed layers need a layout of their own"
            qkv = layer.qkv(residual, norm=layer.input_norm, eps=eps)
            attended = rope_attention(
                qkv,
                cos,
                sin,
                layout,
                k_cache=cache.k_layers[index],
                v_cache=cache.v_layers[index],
                cache_rows=cache_rows,
                num_heads=self.config.num_heads,
                num_kv_heads=self.config.num_kv_heads,
                q_norm=layer.q_norm,
                k_norm=layer.k_norm,
                eps=eps,
                angle_rows=angle_rows,
                scale=self.config.head_dim**-0.5,
            )  # [T, Hq, D]
            layer.output(attended.flatten(1), residual=residual)
            hidden = layer.gate_up(residual, norm=layer.post_norm, eps=eps, activation="silu_mul")
            layer.down(hidden, residual=residual)
            if on_layer is not None and index < last:
                on_layer(index, residual)
        hidden = rms_norm(residual, self.norm, eps=eps)
        if on_layer is not None:
            on_layer(last, hidden)
        return hidden
