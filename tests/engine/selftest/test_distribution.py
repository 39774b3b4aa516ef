"""The self-test's own distribution: that of transformers' warpers, in float64."""

import numpy as np
import pytest
import torch

from dspark.engine.requests import SamplingParams
from dspark.engine.selftest.distribution import is_settled, steep_temperature, token_probabilities

SETTINGS = [
    SamplingParams(temperature=1.0),
    SamplingParams(temperature=0.3),
    SamplingParams(temperature=0.8, top_k=5),
    SamplingParams(temperature=1.3, top_p=0.7),
    SamplingParams(temperature=1.0, top_k=9, top_p=0.5),
    SamplingParams(temperature=1.0, top_k=100, top_p=0.999),
]


def transformers_probabilities(logits, sampling):
    from transformers import TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

    scores = TemperatureLogitsWarper(sampling.temperature)(None, torch.from_numpy(logits)[None])
    if sampling.top_k:
        scores = TopKLogitsWarper(sampling.top_k)(None, scores)
    if sampling.top_p < 1:
        scores = TopPLogitsWarper(sampling.top_p)(None, scores)
    return torch.softmax(scores, dim=-1)[0].numpy()


@pytest.mark.parametrize("sampling", SETTINGS, ids=lambda s: f"t{s.temperature}-k{s.top_k}-p{s.top_p}")
def test_probabilities_are_those_of_transformers(sampling):
    for seed in range(20):
        logits = 3 * np.random.default_rng(seed).standard_normal(50)
        np.testing.assert_allclose(
            token_probabilities(logits, sampling), transformers_probabilities(logits, sampling), atol=1e-12
        )


def test_ties_go_to_the_lower_id():
    probs = token_probabilities(np.array([0.0, 2.0, 2.0, 2.0]), SamplingParams(temperature=1.0, top_k=2))
    assert probs.tolist() == [0, 0.5, 0.5, 0]


def test_a_cut_between_two_near_logits_is_not_settled():
    top_k = SamplingParams(temperature=1.0, top_k=2)
    assert is_settled(np.array([3.0, 2.0, 1.0]), top_k, noise=0.1)
    assert not is_settled(np.array([3.0, 2.0, 1.9]), top_k, noise=0.1)
    top_p = SamplingParams(temperature=1.0, top_p=0.8)
    assert is_settled(np.log([0.6, 0.3, 0.1]), top_p, noise=0.1)
    assert not is_settled(np.log([0.79, 0.11, 0.1]), top_p, noise=0.1)
    assert is_settled(np.array([1.0, 1.0]), SamplingParams(temperature=1.0), noise=9.0)


@pytest.mark.parametrize("scale", [0.1, 3.0, 40.0])
def test_a_steep_temperature_gives_the_perplexity_asked_for(scale):
    logits = scale * np.random.default_rng(1).standard_normal(60)
    probs = token_probabilities(logits, SamplingParams(temperature=steep_temperature(logits, perplexity=2.5)))
    perplexity = np.exp(-(probs[probs > 0] * np.log(probs[probs > 0])).sum())
    # Never flatter, and never hotter than 1, where a steep distribution stays as it is.
    assert perplexity == pytest.approx(2.5, rel=0.05) if scale < 40 else perplexity < 2.5
