"""How well the confidence head tells which blocks survive, beside the true chance of acceptance, 1 - ½‖q - p‖₁."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dspark.calibration import Provenance, Traces, survival
from dspark.engine import Engine, Request
from dspark.engine.jobs.round_records import RequestRounds, RoundRecorder, traces_of

RESAMPLES = 1000


@dataclass(frozen=True, slots=True)
class Estimate:
    """A number, and the middle 95 % of what resampled requests give for it; those that give none do not count."""

    value: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class SurvivalScore:
    """Survival of the first `position` drafted tokens, on the rounds where it is known; None where not defined."""

    position: int  # from 1
    rounds: int
    survived: Estimate | None  # share of the rounds
    head: Estimate | None  # ROC-AUC
    truth: Estimate | None  # ROC-AUC
    ratio: Estimate | None  # head / truth


def recorded_rounds(engine: Engine, requests: Sequence[Request], datasets: Sequence[str]) -> Traces:
    """Rounds of `requests`, which ignore stop tokens; `datasets` name them, both by request index.

    Rounds that began at or behind a text's first stop token are left out. Had decoding ended there, a block accepted up
    to a stop token would have no known end, and one rejected before it would: the failures of such blocks would count
    and their successes would not.
    """
    recorder, parts = RoundRecorder(engine.gamma), []
    engine.observer = recorder
    for completion in sorted(engine.generate(requests), key=lambda completion: completion.index):
        assert completion.error is None, completion.error
        request, rounds = requests[completion.index], recorder.take(completion.index)
        stops = [i for i, token in enumerate(completion.token_ids) if token in engine.stop_ids]
        end = len(request.prompt_token_ids) + (stops[0] if stops else len(completion.token_ids))
        before = rounds[rounds["text_position"] < end]
        parts.append(RequestRounds(completion.index, datasets[completion.index], before))
    engine.observer = None
    provenance = Provenance(acceptance=engine.config.acceptance)
    return traces_of(parts, gamma=engine.gamma, policy=engine.policy_name, provenance=provenance)


def survival_scores(
    traces: Traces, positions: Sequence[int], *, rng: np.random.Generator, resamples: int = RESAMPLES
) -> list[SurvivalScore]:
    """Of survival at each of `positions`, predicted by products of confidences and of `oracle_acceptance`.

    Rounds of one request are alike, so intervals are of requests drawn anew, each with all its rounds.
    """
    head = survival(traces.confidence_logits, np.ones(traces.gamma))
    truth = np.cumprod(traces.signals["oracle_acceptance"], axis=1, dtype=np.float64)
    requests, owner = np.unique(traces.request, return_inverse=True)
    drawn = rng.multinomial(len(requests), np.full(len(requests), 1 / len(requests)), size=resamples)  # [B, requests]
    scores = []
    for position in positions:
        known, survived = traces.survival_known_at(position)
        label, predictors = survived[known], (head[known, position - 1], truth[known, position - 1])
        values = _numbers(label, predictors, np.ones(len(label), dtype=np.int64))
        resampled = np.array([_numbers(label, predictors, times[owner[known]]) for times in drawn])
        estimates = [_estimate(value, others) for value, others in zip(values, resampled.T, strict=True)]
        scores.append(SurvivalScore(position, len(label), *estimates))
    return scores


def _numbers(label: np.ndarray, predictors: tuple[np.ndarray, np.ndarray], times: np.ndarray) -> tuple[float, ...]:
    """Rounds [n], each so many `times` -> share that survives, AUC of either predictor, their ratio; NaN: undefined."""
    from sklearn.metrics import roc_auc_score

    label = np.repeat(label, times)
    if not label.size or label.all() or not label.any():
        return (float(label.mean()) if label.size else np.nan, np.nan, np.nan, np.nan)
    head, truth = (float(roc_auc_score(label, np.repeat(scores, times))) for scores in predictors)
    return float(label.mean()), head, truth, head / truth if truth else np.nan


def _estimate(value: float, resampled: np.ndarray) -> Estimate | None:
    if np.isnan(value):
        return None
    low, high = np.nanquantile(resampled, (0.025, 0.975))
    return Estimate(value, float(low), float(high))
