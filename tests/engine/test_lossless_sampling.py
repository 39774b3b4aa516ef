"""Whatever is drafted and verified, the text follows the target's own distribution: enumerated, not estimated."""

from __future__ import annotations

from copy import copy
from dataclasses import replace

import numpy as np
import pytest
import torch
from block_before import ReadsBlockBefore, remembering
from lossless import SETTINGS, assert_fails, assert_fits, decode, logits, make_engine, pair, truth
from sampling_oracle import target_probs
from toy_pair import ToyPair, token_probabilities

from dspark.engine.models import block_logits
from dspark.engine.models.layers import Head
from dspark.engine.scheduler.policies import LengthPolicy, ScheduleView
from dspark.kernels import SAMPLE, TopQ, draw_from_top
from dspark.kernels.verification import reference as verification

__all__ = ["logits", "pair", "remembering", "truth"]


class ReadsHistory(ReadsBlockBefore):
    """All of a block, or nothing if the block before was not sure of its third position."""

    def lengths(self, view: ScheduleView) -> np.ndarray:
        sure = self.before.known & (self.before.confidence_logits[:, 2] > 0)
        return np.where(sure, view.caps, 0)


@pytest.mark.parametrize("setting", range(len(SETTINGS)))
def test_truth(logits: list[list[np.ndarray]], setting: int) -> None:
    sampling, behind = SETTINGS[setting], logits[1][6][::7]
    options = {"temperature": sampling.temperature, "top_k": sampling.top_k, "top_p": sampling.top_p}
    expected = [target_probs(row, **options) for row in behind]
    np.testing.assert_allclose(token_probabilities(behind, sampling), expected, atol=1e-12)


def test_fixed_by_rejection(pair: ToyPair, truth: list[list[np.ndarray]]) -> None:
    engine = make_engine(pair, policy="fixed:3")
    assert_fits(decode(engine, 200_000, fewest_rounds=4), truth)
    # A pair that accepts nothing, or everything, would prove little.
    assert 0.3 < engine.stats.spec.accepted / engine.stats.spec.observed < 0.9


@pytest.mark.parametrize(
    ("policy", "config"),
    [
        pytest.param("none", {}, id="none"),
        pytest.param("threshold:0.4", {}, id="threshold"),
        pytest.param(ReadsHistory(), {}, id="reads-history"),
        pytest.param("fixed:2", {"kv_cache_tokens": 512 * 24, "concurrency": 1024}, id="preemption"),
        pytest.param("fixed:3", {"acceptance": "coupled"}, id="coupled"),
        pytest.param("fixed:3", {"pipeline_depth": 1}, id="overlapped"),
        pytest.param(ReadsHistory(), {"pipeline_depth": 1}, id="overlapped-reads-history"),
        pytest.param(
            "threshold:0.4",
            {"pipeline_depth": 1, "kv_cache_tokens": 512 * 24, "concurrency": 1024},
            id="overlapped-preemption",
        ),
    ],
)
def test_other_schedules(
    pair: ToyPair, truth: list[list[np.ndarray]], policy: str | LengthPolicy, config: dict[str, object]
) -> None:
    engine = make_engine(pair, policy=policy, **config)
    assert_fits(decode(engine, 12_000), truth)
    assert (engine.stats.preemptions > 0) == ("kv_cache_tokens" in config)


@pytest.mark.parametrize("policy", ["fixed:3", "threshold:0.4", ReadsHistory()], ids=["fixed", "threshold", "history"])
def test_coupled_is_plain_sampling(pair: ToyPair, policy: str | LengthPolicy) -> None:
    plain = decode(make_engine(pair, policy="none"), 5_000)
    coupled = make_engine(pair, policy=policy, acceptance="coupled", concurrency=1000)
    np.testing.assert_array_equal(decode(coupled, 5_000), plain)
    assert coupled.stats.spec.accepted > 0.3 * coupled.stats.spec.observed


@pytest.fixture(scope="module")
def flat_pair(pair: ToyPair) -> ToyPair:
    """The pair with a drafter of flatter distributions, of which a cut leaves out much."""
    drafter = copy(pair.drafter)
    drafter.head = Head(0.3 * pair.target.head.weight)
    drafter.markov = replace(pair.drafter.markov, w2=0.3 * pair.drafter.markov.w2)
    return replace(pair, drafter=drafter)


@pytest.mark.parametrize(
    ("policy", "config"),
    [
        pytest.param("fixed:3", {"draft_top_k": 2}, id="two"),
        pytest.param("fixed:3", {"draft_top_k": 1}, id="one"),
        pytest.param("fixed:2", {"draft_top_k": 2, "kv_cache_tokens": 512 * 24, "concurrency": 1024}, id="preemption"),
        pytest.param(ReadsHistory(), {"draft_top_k": 2, "pipeline_depth": 1}, id="overlapped-reads-history"),
    ],
)
def test_drafts_from_few_tokens(
    flat_pair: ToyPair, truth: list[list[np.ndarray]], policy: str | LengthPolicy, config: dict[str, object]
) -> None:
    engine = make_engine(flat_pair, policy=policy, **config)
    assert_fits(decode(engine, 12_000), truth)
    assert 0.2 < engine.stats.spec.accepted / engine.stats.spec.observed < 0.9
    assert (engine.stats.preemptions > 0) == ("kv_cache_tokens" in config)


@pytest.mark.parametrize("top_k", [2, 1], ids=["two", "one"])
def test_coupled_drafts_from_few_tokens_are_plain_sampling(flat_pair: ToyPair, top_k: int) -> None:
    plain = decode(make_engine(flat_pair, policy="none"), 5_000)
    coupled = make_engine(flat_pair, policy="fixed:3", acceptance="coupled", concurrency=1000, draft_top_k=top_k)
    np.testing.assert_array_equal(decode(coupled, 5_000), plain)
    assert coupled.stats.spec.accepted > 0.3 * coupled.stats.spec.observed


# The faults below bias the text without any other sign of it. Each test puts one in and shows that the fit notices.


def test_notices_acceptance_sharing_random_numbers_with_resampling(
    pair: ToyPair, truth: list[list[np.ndarray]], monkeypatch: pytest.MonkeyPatch
) -> None:
    own = verification.uniform

    def from_the_sample_stream(keys):
        return own(replace(keys, purpose=SAMPLE, generations=torch.zeros_like(keys.generations)))

    monkeypatch.setattr(verification, "uniform", from_the_sample_stream)
    assert_fails(decode(make_engine(pair, policy="fixed:3"), 12_000), truth)


def test_notices_old_noise_at_a_position_drafted_again(
    pair: ToyPair, truth: list[list[np.ndarray]], monkeypatch: pytest.MonkeyPatch
) -> None:
    own = block_logits.markov_step

    def keyed_by_position_alone(*args, noise, **kwargs):
        noise = replace(noise, generations=torch.zeros_like(noise.generations))
        return own(*args, noise=noise, **kwargs)

    monkeypatch.setattr(block_logits, "markov_step", keyed_by_position_alone)
    assert_fails(decode(make_engine(pair, policy=ReadsHistory()), 12_000), truth)


def test_notices_an_argmax_draft_verified_with_a_softmax(
    pair: ToyPair, truth: list[list[np.ndarray]], monkeypatch: pytest.MonkeyPatch
) -> None:
    own = block_logits.markov_step

    def argmax(*args, noise, **kwargs):
        return own(*args, noise=None, **kwargs)

    monkeypatch.setattr(block_logits, "markov_step", argmax)
    assert_fails(decode(make_engine(pair, policy="fixed:3"), 12_000), truth)


def test_notices_a_draft_from_few_tokens_verified_with_the_whole_q(
    flat_pair: ToyPair, truth: list[list[np.ndarray]], monkeypatch: pytest.MonkeyPatch
) -> None:
    own = block_logits.markov_step

    def from_two(logits, *args, noise, temperature, **kwargs):
        likeliest = own(logits, *args, noise=None, temperature=temperature, **kwargs)
        if noise is None:
            return likeliest
        return draw_from_top(logits, noise=noise, temperature=temperature, out=TopQ.uniform(len(logits), count=2))

    monkeypatch.setattr(block_logits, "markov_step", from_two)
    assert_fails(decode(make_engine(flat_pair, policy="fixed:3"), 12_000), truth)
