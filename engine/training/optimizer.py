"""What moves the weights: AdamW alone, or Muon for the projections and AdamW for the rest."""

from __future__ import annotations

from typing import Any

import torch

from dspark.engine.training.draft_model import TrainableDrafter
from dspark.engine.training.settings import MUON, TrainSettings

_BETAS = (0.9, 0.95)
_MOMENTUM = 0.95


class DraftOptimizer:
    """Steps over fp32 weights. Norms, biases, Markov tables and confidence do not decay, and are always AdamW's.

    Muon's steps are scaled to the size that AdamW's have, so one learning rate serves both.
    """

    def __init__(self, model: TrainableDrafter, settings: TrainSettings) -> None:
        projections: list[torch.nn.Parameter] = []
        others: list[torch.nn.Parameter] = []
        for name, parameter in model.named_parameters():
            is_projection = parameter.ndim == 2 and "markov_w" not in name and "confidence" not in name
            (projections if is_projection else others).append(parameter)
        rate, decay = settings.learning_rate, settings.weight_decay
        groups: list[dict[str, Any]] = [{"params": others, "weight_decay": 0.0}]
        self._optimizers: list[torch.optim.Optimizer] = []
        if settings.optimizer == MUON:
            self._optimizers.append(
                torch.optim.Muon(
                    projections, lr=rate, weight_decay=decay, momentum=_MOMENTUM, adjust_lr_fn="match_rms_adamw"
                )
            )
        else:
            groups.append({"params": projections, "weight_decay": decay})
        fused = next(model.parameters()).is_cuda
        self._optimizers.append(torch.optim.AdamW(groups, lr=rate, betas=_BETAS, fused=fused))

    def step(self, rate: float) -> None:
        """Move all weights at this learning rate and drop their gradients."""
        for optimizer in self._optimizers:
            for group in optimizer.param_groups:
                group["lr"] = rate
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)

    def state_dict(self) -> list[dict[str, Any]]:
        """All that the next step depends on."""
        return [optimizer.state_dict() for optimizer in self._optimizers]

    def load_state_dict(self, states: list[dict[str, Any]]) -> None:
        """Go on from `states`, of an optimizer over the same model and settings."""
        for optimizer, state in zip(self._optimizers, states, strict=True):
            optimizer.load_state_dict(state)
