"""The cos/sin table of a rotary embedding."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from dspark.engine.models.rope_config import RopeConfig
from dspark.kernels.rope_cache import rotation_tables

# cos, sin, and the row of them that each token takes if they are whole tables.
Angles = tuple[Tensor, Tensor, Tensor | None]


class RotaryTable:
    """cos and sin of every position, fp32, gathered once a forward."""

    def __init__(self, rope: RopeConfig, *, head_dim: int, num_positions: int, device: torch.device) -> None:
        positions = torch.arange(num_positions, dtype=torch.float32, device=device)
        angles = torch.outer(positions, _inverse_frequencies(rope, head_dim).to(device))
        self.cos, self.sin = rotation_tables(angles)  # [positions, 1, D]

    def gather(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """positions [T] -> cos, sin [T, 1, D]."""
        return self.cos.index_select(0, positions), self.sin.index_select(0, positions)

    def angles(self, positions: Tensor) -> Angles:
        """What `rope_attention` takes: gathered cos and sin on a CPU; on a GPU, where each gather is a launch a
        forward, the tables and the rows that each token reads itself."""
        if positions.is_cuda:
            return self.cos, self.sin, positions
        return *self.gather(positions), None


def _inverse_frequencies(rope: RopeConfig, head_dim: int) -> Tensor:
    inverse = 1.0 / rope.theta ** (torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim)
    scaling = rope.llama3
    if scaling is None:
        return inverse
    # Wavelengths beyond the original context are stretched by `factor`, short ones kept, those between interpolated.
    turns = scaling.original_max_positions * inverse / (2 * math.pi)
    kept = (turns - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor)
    kept = kept.clamp(0.0, 1.0)
    return kept * inverse + (1.0 - kept) * inverse / scaling.factor
