"""A test double of acceptance: every forward and every kernel runs, and what is accepted comes from recorded rounds.

Random weights draft nothing that passes, so policies would have nothing to choose by. Here a stretch of a slot's text
is one of the requests recorded, and the block at a position is one of that request's rounds: its confidence takes the
place of the drafter's, and as many of its tokens pass as did then, at most as many as were verified.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pandas as pd
import torch
from torch import Tensor

from dspark.engine.graphs import draft_graphs, target_graphs
from dspark.engine.models.drafter import Drafter
from dspark.kernels.prepare.inputs import BatchInputs

_STRETCH = 64  # tokens


@dataclass(frozen=True, slots=True)
class RecordedRounds:
    """N rounds of Q requests, each verified in full, in the order of their requests."""

    first: Tensor  # [Q] int64, of a request's rounds
    count: Tensor  # [Q] int64
    accepted: Tensor  # [N] int64
    confidence_logits: Tensor  # [N, γ] fp32

    @classmethod
    def read(cls, path: Path, device: torch.device) -> RecordedRounds:
        """Of a traces.parquet that `dspark calibrate` wrote."""
        rounds = pd.read_parquet(path)
        rounds = rounds[rounds["verified"] == rounds["drafted"].max()].sort_values(["request", "round"])
        counts = rounds.groupby("request", sort=True).size().to_numpy()
        logits = rounds[[name for name in rounds.columns if name.startswith("confidence_logit_")]].to_numpy("float32")
        count = torch.tensor(counts, device=device)
        return cls(
            first=count.cumsum(0) - count,
            count=count,
            accepted=torch.tensor(rounds["accepted"].to_numpy("int64"), device=device),
            confidence_logits=torch.tensor(logits, device=device),
        )

    def of(self, slots: Tensor, positions: Tensor) -> Tensor:
        """Which round [R] each block is."""
        stretch = slots * 7919 + positions.div(_STRETCH, rounding_mode="floor") * 104_729
        request = stretch.remainder(len(self.count))
        return self.first[request] + positions.remainder(self.count[request])


@contextmanager
def imposed(rounds: RecordedRounds) -> Iterator[None]:
    """Engines that capture their graphs here accept what `rounds` say. Costs some small kernels a round."""
    verify, commit = target_graphs.verify, target_graphs.commit_round
    prepare, draft = draft_graphs.prepare_batch, Drafter.draft
    verified: list[Tensor] = []
    drafted: list[BatchInputs] = []

    def verify_and_remember(*args: Any, **inputs: Any) -> Any:
        verified[:] = [inputs["positions"]]
        return verify(*args, **inputs)

    def commit_as_recorded(*args: Any, **inputs: Any) -> Any:
        recorded = rounds.accepted[rounds.of(inputs["slots"], *verified)]
        passed = torch.minimum(recorded, inputs["lengths"].clamp(min=0))
        return commit(*args, **inputs | {"accepted": passed.to(inputs["accepted"].dtype)})

    def prepare_and_remember(*args: Any, out: BatchInputs, **inputs: Any) -> Any:
        drafted[:] = [out]
        return prepare(*args, out=out, **inputs)

    def draft_as_recorded(*args: Any, **inputs: Any) -> Any:
        output = draft(*args, **inputs)
        recorded = rounds.confidence_logits[rounds.of(drafted[0].slots, drafted[0].starts)]
        output.confidence_logits.copy_(recorded[:, : output.confidence_logits.shape[1]])
        return output

    with (
        patch.object(target_graphs, "verify", verify_and_remember),
        patch.object(target_graphs, "commit_round", commit_as_recorded),
        patch.object(draft_graphs, "prepare_batch", prepare_and_remember),
        patch.object(Drafter, "draft", draft_as_recorded),
    ):
        yield
