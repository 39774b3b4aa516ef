"""The frozen target over packed texts: the features that the drafter reads, and the distributions it is to have."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from dspark.engine.batch import PackedBatch
from dspark.engine.models.kv_cache import KVCache
from dspark.engine.models.target import Target


@dataclass(frozen=True, slots=True)
class Taught:
    """What the target says of T text positions."""

    features: Tensor  # [T, n*H]
    hidden: Tensor  # [T, H], behind the final norm


class Teacher:
    """The engine's own forward of the target, so that a drafter is trained on the very features that it will read.

    Args:
        feature_layers: target layers whose features are wanted.
        num_pages: cache pages that the largest batch takes.
        page_size: tokens of a page.
    """

    def __init__(self, target: Target, feature_layers: tuple[int, ...], *, num_pages: int, page_size: int) -> None:
        self.target = target
        self._layers = feature_layers
        self._cache: KVCache = target.new_cache(num_pages, page_size)

    def __call__(self, text: PackedBatch) -> Taught:
        """Features and hidden states of every token; logits are left to whoever needs them."""
        last = self.target.config.num_layers - 1
        no_rows = torch.empty(0, dtype=torch.int64, device=text.token_ids.device)
        output = self.target.forward(text, self._cache, logit_rows=no_rows, feature_layers=(*self._layers, last))
        assert output.features is not None
        split = len(self._layers) * self.target.config.hidden_size
        # Copies: what was made in inference mode cannot be saved for a backward pass.
        return Taught(output.features[:, :split].clone(), output.features[:, split:].clone())
