"""A fake engine that tells its rounds."""

from __future__ import annotations

import numpy as np
from fake_engine import FakeEngine

from dspark.engine.observation import ObservedRound, RoundObserver
from dspark.engine.requests import Completion, Request

GAMMA = 3


class TracedEngine(FakeEngine):
    """Accepts nothing of any block; logits of round j of a prompt of n tokens: n, j and the request's index."""

    gamma = GAMMA
    observer: RoundObserver | None = None

    def fingerprint(self) -> dict[str, object]:
        return {"acceptance": "rejection", "drafter": "d1", **super().fingerprint()}

    def _answer(self, request: Request) -> Completion:
        completion = super()._answer(request)
        if self.observer is not None:
            for j in range(completion.counts.rounds):
                self.observer(_round(request, j))
        return completion


def _round(request: Request, j: int) -> ObservedRound:
    length = len(request.prompt_token_ids)
    sampling = request.sampling

    def one(value: float) -> np.ndarray:
        return np.array([value])

    return ObservedRound(
        request=one(request.index),
        text_position=one(length + j),
        drafted=one(GAMMA),
        verified=one(GAMMA),
        observed=one(1),
        accepted=one(0),
        confidence_logits=np.array([[length, j, request.index]], dtype=np.float32),
        temperature=np.float32([sampling.temperature]),
        top_k=one(sampling.top_k),
        top_p=np.float32([sampling.top_p]),
        signals={"draft_margin": np.array([[0.25, 0.5, np.nan]], dtype=np.float32)},
    )
