"""A draft distribution that only few tokens have a share in."""

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor


@dataclass(slots=True)
class TopQ:
    """q of drafted tokens as its K tokens and their log-probabilities, whose mass is 1; any other token has q = 0."""

    ids: Tensor  # [..., K] int32, rising
    log_probs: Tensor  # [..., K] fp32

    @classmethod
    def uniform(cls, *shape: int, count: int, device: torch.device | str = "cpu") -> "TopQ":
        """Memory for distributions of K = `count` tokens, [*shape, K]; until written, the first K alike."""
        ids = torch.arange(count, dtype=torch.int32, device=device).expand(*shape, count).contiguous()
        return cls(ids, torch.full_like(ids, -math.log(count), dtype=torch.float32))

    @property
    def count(self) -> int:
        """Tokens that have a share (K)."""
        return self.ids.shape[-1]

    def __getitem__(self, index: Any) -> "TopQ":
        """The same part of both, as of tensors."""
        return TopQ(self.ids[index], self.log_probs[index])
