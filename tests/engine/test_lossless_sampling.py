"""Whatever is drafted and verified, the text follows the target's own distribution: enumerated, not estimated."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
import torch
from chi_square import fit_p_value
from sampling_oracle import target_probs
from toy_pair import (
    LAST_TOKEN,
    VOCAB,
    ToyPair,
    history_logits,
    make_toy_pair,
    text_probabilities,
    token_probabilities,
)

from dspark.engine import Engine, Request, SamplingParams
from dspark.engine.config import EngineConfig
from dspark.engine.models import block_logits
from dspark.engine.scheduler.policies import Policy, ScheduleView
from dspark.kernels import SAMPLE
from dspark.kernels.verification import reference as verification

PROMPTS = ([0], [1, 2, 0])
SETTINGS = (
    SamplingParams(temperature=1.0),
    SamplingParams(temperature=0.6),
    SamplingParams(temperature=1.4, top_k=2),
    SamplingParams(temperature=1.0, top_p=0.8),
    SamplingParams(temperature=0.8, top_k=2, top_p=0.9),
    SamplingParams(temperature=0.0),
)
NUM_GROUPS = len(PROMPTS) * len(SETTINGS)
# A round of fixed:3 emits at most 4 tokens, so 14 tokens (one of them from prefill) take at least 4 rounds.
MAX_TOKENS = (14, 15, 17, 20)
FIRST_TOKEN = 4
FITS = 1e-3
FAILS = 1e-6
MAX_CONTEXT = 3 + max(MAX_TOKENS)


class ReadsHistory:
    """All of a block, or nothing if the block before was not sure of its third position."""

    drafts = True
    reads_confidence = True

    def steps(self, gamma: int) -> int:
        return gamma

    def lengths(self, view: ScheduleView) -> np.ndarray:
        assert view.previous_confidence_logits is not None and view.previous_valid is not None
        sure = view.previous_valid & (view.previous_confidence_logits[:, 2] > 0)
        return np.where(sure, view.caps, 0)


@pytest.fixture(scope="module")
def pair() -> Iterator[ToyPair]:
    threads = torch.get_num_threads()
    # Tensors this small only lose by being shared out.
    torch.set_num_threads(1)
    yield make_toy_pair()
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def logits(pair: ToyPair) -> list[list[np.ndarray]]:
    """For each prompt, the logits behind all texts of 0 to 11 tokens."""
    return [history_logits(pair.reference, prompt) for prompt in PROMPTS]


@pytest.fixture(scope="module")
def truth(logits: list[list[np.ndarray]]) -> list[list[np.ndarray]]:
    """For each group of requests, the probabilities of all texts of 1 to 12 tokens."""
    return [text_probabilities(logits[g % len(PROMPTS)], SETTINGS[g // len(PROMPTS)]) for g in range(NUM_GROUPS)]


def group_of(index: int) -> int:
    return index % NUM_GROUPS


def requests(count: int) -> Iterator[Request]:
    """Prompts, sampling settings and lengths in every combination, side by side in every batch."""
    for index in range(count):
        group = group_of(index)
        max_tokens = MAX_TOKENS[index // NUM_GROUPS % len(MAX_TOKENS)]
        sampling = replace(SETTINGS[group // len(PROMPTS)], max_tokens=max_tokens)
        yield Request(index, PROMPTS[group % len(PROMPTS)], sampling)


def make_engine(pair: ToyPair, *, policy: str | Policy, **config: object) -> Engine:
    settings = {"concurrency": 2048, "max_context": MAX_CONTEXT, "page_size": 4, "prefill_chunk_tokens": 1 << 15}
    spelled = policy if isinstance(policy, str) else None
    return Engine(
        EngineConfig(device="cpu", dtype="float32", policy=spelled, **(settings | config)),
        target=pair.target,
        drafter=pair.drafter,
        policy=None if isinstance(policy, str) else policy,
    )


def decode(engine: Engine, count: int, *, fewest_rounds: int = 0) -> np.ndarray:
    """The first 12 tokens of `count` requests, [count, 12]."""
    tokens = np.full((count, LAST_TOKEN), -1, dtype=np.int64)
    for completion in engine.generate(requests(count)):
        assert completion.finish_reason == "length", completion
        assert completion.counts.rounds >= fewest_rounds
        tokens[completion.index] = completion.token_ids[:LAST_TOKEN]
    return tokens


def p_values(tokens: np.ndarray, truth: list[list[np.ndarray]], *, width: int = 1) -> dict[int, float]:
    """p of the fit of each `width` neighbouring tokens whose last is token 4 .. 12."""
    group = group_of(np.arange(len(tokens)))
    outcomes = VOCAB**width
    result = {}
    for last in range(FIRST_TOKEN, LAST_TOKEN + 1):
        window = tokens[:, last - width : last] @ VOCAB ** np.arange(width)[::-1]
        result[last] = fit_p_value(
            (
                np.bincount(window[group == g], minlength=outcomes),
                truth[g][last - 1].reshape(-1, outcomes).sum(axis=0),
            )
            for g in range(NUM_GROUPS)
        )
    return result


def assert_fits(tokens: np.ndarray, truth: list[list[np.ndarray]]) -> None:
    for width in (1, 2):
        found = p_values(tokens, truth, width=width)
        assert min(found.values()) > FITS, (width, found)


def assert_fails(tokens: np.ndarray, truth: list[list[np.ndarray]]) -> None:
    found = p_values(tokens, truth)
    assert min(found.values()) < FAILS, found


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
    pair: ToyPair, truth: list[list[np.ndarray]], policy: str | Policy, config: dict[str, object]
) -> None:
    engine = make_engine(pair, policy=policy, **config)
    assert_fits(decode(engine, 12_000), truth)
    assert (engine.stats.preemptions > 0) == ("kv_cache_tokens" in config)


@pytest.mark.parametrize("policy", ["fixed:3", "threshold:0.4", ReadsHistory()], ids=["fixed", "threshold", "history"])
def test_coupled_is_plain_sampling(pair: ToyPair, policy: str | Policy) -> None:
    plain = decode(make_engine(pair, policy="none"), 5_000)
    coupled = make_engine(pair, policy=policy, acceptance="coupled", concurrency=1000)
    np.testing.assert_array_equal(decode(coupled, 5_000), plain)
    assert coupled.stats.spec.accepted > 0.3 * coupled.stats.spec.observed


@pytest.mark.parametrize("acceptance", ["rejection", "coupled"])
def test_a_drafter_that_knows_two_of_three_tokens(truth: list[list[np.ndarray]], acceptance: str) -> None:
    engine = make_engine(make_toy_pair(draft_ids=(0, 2)), policy="fixed:3", acceptance=acceptance)
    tokens = decode(engine, 12_000, fewest_rounds=4)
    assert_fits(tokens, truth)
    assert 0.3 < engine.stats.spec.accepted / engine.stats.spec.observed < 0.9
    if acceptance == "coupled":
        np.testing.assert_array_equal(tokens, decode(make_engine(make_toy_pair(), policy="none"), 12_000))


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
