"""Acceptance and residual of one draft, against the method authors' recorded rounds and exact enumeration."""

import itertools
import json
from collections import defaultdict
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from dspark.kernels import (
    target_log_probs,
)
from dspark.kernels.sampling.reference import scale_
from dspark.kernels.verification.reference import (
    accept_draft,
    prefix_lengths,
    residual_log_weights,
    residual_of_one_hot,
    token_log_probs,
)

FIXTURE = Path(__file__).parents[1] / "fixtures" / "temperature_sampling"
FP32 = {"atol": 1e-6, "rtol": 1e-5}


@pytest.fixture(scope="module")
def recorded() -> tuple[list[dict], dict[str, torch.Tensor]]:
    return json.loads((FIXTURE / "expected.json").read_text())["runs"], load_file(FIXTURE / "expected.safetensors")


@pytest.mark.parametrize("run_index", range(5))
def test_reproduces_the_authors_rounds(recorded: tuple[list[dict], dict[str, torch.Tensor]], run_index: int) -> None:
    runs, tensors = recorded
    run = runs[run_index]
    for round_index, expected in enumerate(run["rounds"]):
        own = {
            name: tensors[f"run{run_index}.r{round_index}.{name}"]
            for name in ("target_logits", "target_probs", "draft_logits", "draft_probs", "uniforms", "next_token_dist")
        }
        length = expected["draft_token_count"]
        drafted = torch.tensor(expected["draft_tokens"][:length])

        def warm(logits: torch.Tensor) -> torch.Tensor:
            return scale_(logits.clone(), torch.full((logits.shape[0],), run["temperature"]))

        scaled_p, scaled_q = warm(own["target_logits"]), warm(own["draft_logits"])
        log_p, log_q = scaled_p.log_softmax(-1), scaled_q.log_softmax(-1)
        torch.testing.assert_close(log_p.exp(), own["target_probs"], **FP32)
        torch.testing.assert_close(log_q.exp()[:length], own["draft_probs"][:length], **FP32)

        passed = accept_draft(
            token_log_probs(scaled_p[:length], drafted),
            token_log_probs(scaled_q[:length], drafted),
            own["uniforms"][:length],
        )
        prefix = passed.cumprod(0).tolist()
        assert prefix == expected["accept_prefix_mask"][:length]
        accepted = int(prefix_lengths(passed[None]))
        assert accepted == expected["accepted"]

        if expected["next_kind"] == "bonus":
            assert accepted == length
            weights = log_p[[accepted]]
        else:
            weights = residual_log_weights(log_p[[accepted]], log_q[[accepted]])
        torch.testing.assert_close(weights.softmax(-1)[0], own["next_token_dist"], **FP32)
        assert own["next_token_dist"][expected["next_token"]] > 0


def _tables(vocab_size: int, depth: int, *, seed: int, spread: float) -> dict[tuple[int, ...], torch.Tensor]:
    """Random float64 log-probabilities behind every prefix shorter than `depth`."""
    generator = torch.Generator().manual_seed(seed)
    return {
        prefix: (torch.randn(vocab_size, generator=generator, dtype=torch.float64) * spread).log_softmax(0)
        for length in range(depth)
        for prefix in itertools.product(range(vocab_size), repeat=length)
    }


def _acceptance_probability(log_p: torch.Tensor, log_q: torch.Tensor) -> float:
    """The measure of the uniforms that `accept_draft` lets pass, its edge checked on both sides."""
    edge = min(1.0, float((log_p - log_q).exp()))
    below, above = torch.tensor([edge * (1 - 1e-9), edge * (1 + 1e-9)], dtype=torch.float64)
    assert edge == 0 or accept_draft(log_p, log_q, below)
    assert edge == 1 or not accept_draft(log_p, log_q, above)
    return edge


def _emitted_distribution(
    p: dict[tuple[int, ...], torch.Tensor], q: dict[tuple[int, ...], torch.Tensor], *, length: int, one_hot: bool
) -> dict[tuple[int, ...], float]:
    """Chance of every text of length + 1 tokens: one round, then plain draws from p up to that length."""
    vocab_size = len(p[()])
    chance: dict[tuple[int, ...], float] = defaultdict(float)

    def plain(prefix: tuple[int, ...], mass: float) -> None:
        if len(prefix) == length + 1:
            chance[prefix] += mass
        elif mass > 0:
            for token, log_prob in enumerate(p[prefix].tolist()):
                plain((*prefix, token), mass * np.exp(log_prob))

    for draft in itertools.product(range(vocab_size), repeat=length):
        mass = 1.0
        for k, token in enumerate(draft):
            # An argmax draft is certain; a sampled one has its probability.
            certain = float(token == int(q[draft[:k]].argmax()))
            mass *= certain if one_hot else float(q[draft[:k]][token].exp())
        for k, token in enumerate(draft):
            if mass == 0:
                break
            log_p, log_q = p[draft[:k]], q[draft[:k]]
            tokens = torch.tensor([token])
            log_q_token = torch.zeros((), dtype=torch.float64) if one_hot else token_log_probs(log_q[None], tokens)[0]
            passes = _acceptance_probability(token_log_probs(log_p[None], tokens)[0], log_q_token)
            if passes < 1:
                residual = (
                    residual_of_one_hot(log_p[None], tokens)
                    if one_hot
                    else residual_log_weights(log_p[None], log_q[None])
                )
                for own, weight in enumerate(residual.softmax(-1)[0].tolist()):
                    plain((*draft[:k], own), mass * (1 - passes) * weight)
            mass *= passes
        plain(draft, mass)
    return chance


@pytest.mark.parametrize("one_hot", [False, True], ids=["sampled-draft", "argmax-draft"])
@pytest.mark.parametrize(("vocab_size", "length"), [(2, 1), (2, 3), (3, 2), (5, 1), (4, 3)], ids=str)
@pytest.mark.parametrize("truncated", [False, True], ids=["whole", "top-k"])
def test_the_emitted_text_has_the_targets_distribution(
    vocab_size: int, length: int, truncated: bool, one_hot: bool
) -> None:
    p = _tables(vocab_size, length + 1, seed=1, spread=1.5)
    q = _tables(vocab_size, length + 1, seed=2, spread=1.0)
    if truncated:
        one, off = torch.ones(1, dtype=torch.float64), torch.ones(1)
        p = {
            prefix: target_log_probs(row[None], one, torch.tensor([max(vocab_size - 1, 1)]), off)[0]
            for prefix, row in p.items()
        }
    chance = _emitted_distribution(p, q, length=length, one_hot=one_hot)
    for text in itertools.product(range(vocab_size), repeat=length + 1):
        expected = np.exp(sum(float(p[text[:k]][token]) for k, token in enumerate(text)))
        assert chance[text] == pytest.approx(expected, abs=1e-12)


def test_an_argmax_draft_verified_with_a_softmax_q_is_seen_by_the_enumeration() -> None:
    log_p = torch.tensor([0.7, 0.3], dtype=torch.float64).log()
    log_q = torch.tensor([0.6, 0.4], dtype=torch.float64).log()
    # The draft is always token 0; p/q > 1 would then accept it always.
    assert _acceptance_probability(log_p[0], log_q[0]) == 1.0
    assert _acceptance_probability(log_p[0], torch.zeros((), dtype=torch.float64)) == pytest.approx(0.7)


def test_the_residual_of_equal_distributions_is_p() -> None:
    log_p = torch.tensor([[0.5, 0.5, 0.0]]).log()
    assert torch.equal(residual_log_weights(log_p, log_p), log_p)
    certain = torch.tensor([[1.0, 0.0, 0.0]]).log()
    assert torch.equal(residual_of_one_hot(certain, torch.tensor([0])), certain)


def test_the_residual_keeps_its_digits_where_p_and_q_nearly_agree() -> None:
    log_p = torch.tensor([[0.5, 0.5]]).log()
    log_q = log_p + torch.tensor([[-3e-7, 3e-7]])
    ratio = (log_q - log_p).double()
    expected = 0.5 * -torch.expm1(ratio[0, 0])
    weights = residual_log_weights(log_p, log_q).exp()
    assert weights[0, 0].item() == pytest.approx(expected.item(), rel=1e-5) and weights[0, 1] == 0


def test_prefix_lengths() -> None:
    passed = torch.tensor([[1, 1, 0, 1], [0, 1, 1, 1], [1, 1, 1, 1], [0, 0, 0, 0]], dtype=torch.bool)
    assert prefix_lengths(passed).tolist() == [2, 0, 4, 0]
