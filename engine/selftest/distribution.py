"""The distribution that a request's settings ask for, worked out in float64 and apart from what the engine samples."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from dspark.engine.requests import SamplingParams

FloatArray = NDArray[np.float64]


def token_probabilities(logits: np.ndarray, sampling: SamplingParams) -> FloatArray:
    """logits [V] -> probabilities [V]: temperature, then top-k, then top-p on the renormalised rest.

    Ties go to the lower token id. `sampling.temperature` is above 0.
    """
    probs = np.zeros(len(logits))
    order, weights = _ordered(logits, sampling)
    kept = _kept(weights, sampling)
    probs[order[:kept]] = weights[:kept] / weights[:kept].sum()
    return probs


def is_settled(logits: np.ndarray, sampling: SamplingParams, *, noise: float) -> bool:
    """Would the same tokens be kept by top-k and top-p, if every logit were off by up to `noise`?"""
    order, weights = _ordered(logits, sampling)
    if sampling.top_k and sampling.top_k < len(logits):
        edge = logits[order[sampling.top_k - 1]] - logits[order[sampling.top_k]]
        if edge <= 2 * noise:
            return False
    if sampling.top_p < 1:
        masses = np.cumsum(weights) / weights.sum()
        # A mass p moves by at most p (1 - p) times twice the noise, in units of the temperature.
        moved = 2 * noise / sampling.temperature * sampling.top_p * (1 - sampling.top_p)
        return bool(np.abs(masses - sampling.top_p).min() > moved)
    return True


def steep_temperature(logits: np.ndarray, *, perplexity: float) -> float:
    """The temperature, at most 1, at which the distribution of logits [V] is that flat and no flatter."""
    low, high = 1e-3, 1.0
    if _perplexity(logits, high) <= perplexity:
        return high
    while high - low > 1e-3:
        middle = (low + high) / 2
        low, high = (middle, high) if _perplexity(logits, middle) <= perplexity else (low, middle)
    return low


def _perplexity(logits: np.ndarray, temperature: float) -> float:
    probs = token_probabilities(logits, SamplingParams(temperature=temperature))
    return float(np.exp(-(probs * np.log(probs, where=probs > 0, out=np.zeros_like(probs))).sum()))


def _ordered(logits: np.ndarray, sampling: SamplingParams) -> tuple[NDArray[np.int64], FloatArray]:
    """Token ids from the likeliest on [V], and the weights [V] of those that top-k keeps, 0 for the others."""
    order = np.argsort(-logits, kind="stable")
    ordered = logits[order].astype(np.float64)
    weights = np.exp((ordered - ordered[0]) / sampling.temperature)
    weights[sampling.top_k or len(logits) :] = 0
    return order, weights


def _kept(weights: FloatArray, sampling: SamplingParams) -> int:
    """How many of the likeliest tokens remain: the fewest whose mass reaches top-p."""
    if sampling.top_p >= 1:
        return len(weights)
    masses = np.cumsum(weights) / weights.sum()
    return int(np.searchsorted(masses, sampling.top_p)) + 1
