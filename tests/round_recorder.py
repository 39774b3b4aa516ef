"""Watches an engine: what it drafted and verified, round by round."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from dspark.engine import Engine
from dspark.engine.batch import PackedBatch
from dspark.engine.models.kv_cache import KVCache
from dspark.engine.models.target import TargetOutput
from dspark.engine.proposals import DraftBlock, DraftOutput


@dataclass
class Round:
    """One round of a lone request."""

    start: int
    anchor: int
    draft_tokens: list[int]
    block_hidden: Tensor  # [G, H]
    base_logits: Tensor  # [G, V], before the Markov head
    corrected_logits: Tensor  # [steps, V]
    confidence_logits: Tensor  # [steps]
    verified_ids: list[int]  # anchor and drafted tokens that the target ran
    target_logits: Tensor  # [1 + verified, V]
    context_features: Tensor  # [start, n*H], what the drafter was told of the committed text
    draft_cache: list[tuple[Tensor, Tensor]]  # K and V of each draft layer below the start, [start, Hkv, D]


class _Watched:
    """Everything of `model` but the methods that a subclass overrides."""

    def __init__(self, model: Any, recorder: RoundRecorder) -> None:
        self._model = model
        self._recorder = recorder

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)


class _WatchedTarget(_Watched):
    def forward(
        self,
        batch: PackedBatch,
        cache: KVCache,
        *,
        logit_rows: Tensor | None = None,
        feature_layers: tuple[int, ...],
        logits_out: Tensor | None = None,
    ) -> TargetOutput:
        assert logits_out is None, "graphs cannot be watched: they were captured before"
        output = self._model.forward(batch, cache, logit_rows=logit_rows, feature_layers=feature_layers)
        # Only prefill says which rows it wants.
        if logit_rows is None and self._recorder.drafted is not None:
            self._recorder.finish_round(batch, output.logits)
        return output


class _WatchedDrafter(_Watched):
    def write_context(self, features: Tensor, batch: PackedBatch, cache: KVCache) -> None:
        self._model.write_context(features, batch, cache)
        for position, feature in zip(batch.positions.tolist(), features, strict=True):
            self._recorder.features[position] = feature

    def draft(self, block: DraftBlock, cache: KVCache) -> DraftOutput:
        output = self._model.draft(block, cache)
        self._recorder.drafted = (block, output, cache)
        return output


class RoundRecorder:
    """Records the rounds of an engine that decodes one request at a time."""

    def __init__(self, engine: Engine) -> None:
        self.rounds: list[Round] = []
        self.features: dict[int, Tensor] = {}
        self.drafted: tuple[DraftBlock, DraftOutput, KVCache] | None = None
        self._head = engine.drafter.head
        engine.target = _WatchedTarget(engine.target, self)
        engine.drafter = _WatchedDrafter(engine.drafter, self)

    def finish_round(self, batch: PackedBatch, target_logits: Tensor) -> None:
        assert self.drafted is not None
        block, draft, cache = self.drafted
        start = int(block.starts)
        page_size = block.attention.page_size
        positions = torch.arange(start, device=block.attention.block_tables.device)
        rows = block.attention.block_tables[0][positions // page_size].long() * page_size + positions % page_size
        self.rounds.append(
            Round(
                start=start,
                anchor=int(block.anchors),
                draft_tokens=draft.tokens[0].tolist(),
                block_hidden=_on_host(draft.hidden[0]),
                base_logits=_on_host(self._head(draft.hidden[0])),
                corrected_logits=_on_host(draft.logits[0]),
                confidence_logits=_on_host(draft.confidence_logits[0]),
                verified_ids=batch.token_ids.tolist(),
                target_logits=_on_host(target_logits),
                context_features=_on_host(torch.stack([self.features[p] for p in range(start)])),
                draft_cache=[
                    (_on_host(k[rows]), _on_host(v[rows])) for k, v in zip(cache.k_layers, cache.v_layers, strict=True)
                ],
            )
        )
        self.drafted = None


def _on_host(tensor: Tensor) -> Tensor:
    """A copy, for what the engine hands out may be written again."""
    return tensor.to("cpu", copy=True)
