"""The paged key/value cache of one model."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor


@dataclass(slots=True)
class KVCache:
    """K and V of all layers by cache row (page x page_size + offset). Page 0 is padding: all zeros, never allocated."""

    k: Tensor  # [L, N, Hkv, D]
    v: Tensor  # [L, N, Hkv, D]
    page_size: int
    # Views of one layer each, [N, Hkv, D], made once: taking a view costs as much as a small operation.
    k_layers: tuple[Tensor, ...] = field(init=False, repr=False)
    v_layers: tuple[Tensor, ...] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self.k_layers = self.k.unbind(0)
        self.v_layers = self.v.unbind(0)

    @classmethod
    def zeros(
        cls,
        num_pages: int,
        page_size: int,
        *,
        num_layers: int,
        num_kv_heads: int,
        head_dim: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> KVCache:
        """An empty cache. On a CPU its memory is committed page by page, as rows are written."""
        shape = (num_layers, num_pages * page_size, num_kv_heads, head_dim)
        k, v = (_lazy_zeros(shape, dtype, device) for _ in range(2))
        return cls(k, v, page_size)

    @property
    def num_pages(self) -> int:
        """Pages, the padding page included."""
        return self.k.shape[1] // self.page_size

    @property
    def bytes_per_page(self) -> int:
        """Bytes of a page, keys and values of all layers."""
        return 2 * self.k.shape[0] * self.page_size * math.prod(self.k.shape[2:]) * self.k.element_size()


def _lazy_zeros(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    if device.type != "cpu":
        return torch.zeros(shape, dtype=dtype, device=device)
    # numpy asks the system for zeroed pages and does not touch them; torch.zeros writes every byte.
    raw = np.zeros(math.prod(shape) * dtype.itemsize, dtype=np.uint8)
    return torch.from_numpy(raw).view(dtype).view(shape)
