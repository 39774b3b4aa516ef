"""The target distribution against its definition and transformers; the draw against the distribution."""

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sampling_oracle import target_probs
from scipy.stats import chisquare
from transformers import TopKLogitsWarper, TopPLogitsWarper

from dspark.kernels import SAMPLE, NoiseKeys, SamplingRows, gumbel, sample, target_log_probs

TOLERANCE = 1e-6


def _probs(logits: torch.Tensor, temperature: float, top_k: int, top_p: float) -> torch.Tensor:
    n = logits.shape[0]
    return target_log_probs(
        logits, torch.full((n,), temperature), torch.full((n,), top_k), torch.full((n,), top_p)
    ).exp()


@settings(deadline=None, max_examples=300)
@given(
    logits=st.lists(st.integers(-3, 3), min_size=1, max_size=6),
    temperature=st.sampled_from([0.0, 0.25, 1.0, 2.0]),
    top_k=st.integers(0, 8),
    # Odd fractions: a sum of these weights never lies within rounding of them.
    top_p=st.sampled_from([1e-30, 0.0173, 0.291, 0.517, 0.773, 0.9371, 1.0]),
)
def test_equals_the_definition_with_ties(logits: list[int], temperature: float, top_k: int, top_p: float) -> None:
    row = torch.tensor([logits], dtype=torch.float32)
    expected = target_probs(row[0].numpy(), temperature=temperature, top_k=top_k, top_p=float(np.float32(top_p)))
    actual = _probs(row, temperature, top_k, top_p)[0].numpy()
    assert ((actual > 0) == (expected > 0)).all()
    np.testing.assert_allclose(actual, expected, atol=TOLERANCE)


@pytest.mark.parametrize("top_p", [0.5, 0.75], ids=str)
def test_top_p_stops_where_the_mass_is_reached_exactly(top_p: float) -> None:
    # Probabilities .25 each are exact in binary, so reaching top_p exactly needs no more tokens.
    kept = _probs(torch.zeros(1, 4), 1.0, 0, top_p)[0] > 0
    assert kept.tolist() == [index < top_p * 4 for index in range(4)]


def test_top_p_one_keeps_tokens_that_rounding_loses() -> None:
    row = torch.tensor([[0.0, -60.0, -80.0]])
    assert torch.isfinite(target_log_probs(row, torch.ones(1), torch.zeros(1, dtype=torch.int64), torch.ones(1))).all()


def test_top_p_counts_the_mass_left_by_top_k() -> None:
    row = torch.tensor([[0.4, 0.3, 0.2, 0.1]]).log()
    # After top-k 2 the first token has 4/7 > .55 of the mass; of the whole it would have .4.
    assert (_probs(row, 1.0, 2, 0.55)[0] > 0).tolist() == [True, False, False, False]


@pytest.mark.parametrize("vocab_size", [1, 7, 100, 1000])
@pytest.mark.parametrize(("top_k", "top_p"), [(0, 1.0), (5, 1.0), (2000, 1.0), (0, 0.9), (20, 0.6), (0, 1e-6)], ids=str)
def test_equals_transformers_warpers(vocab_size: int, top_k: int, top_p: float) -> None:
    logits = torch.randn(9, vocab_size, generator=torch.Generator().manual_seed(3)) * 3
    warped = logits / 0.7
    if top_k:
        warped = TopKLogitsWarper(top_k)(None, warped)
    if top_p < 1:
        warped = TopPLogitsWarper(top_p)(None, warped)
    torch.testing.assert_close(_probs(logits, 0.7, top_k, top_p), warped.softmax(-1), atol=TOLERANCE, rtol=0)


@pytest.mark.parametrize("temperature", [1e-45, 1e-30, 1e-3], ids=str)
def test_a_tiny_temperature_does_not_overflow(temperature: float) -> None:
    probs = _probs(torch.tensor([[20.0, 31.0, -5.0, 31.0]]), temperature, 0, 1.0)
    torch.testing.assert_close(probs, torch.tensor([[0.0, 0.5, 0.0, 0.5]]))


def test_logits_of_minus_infinity_stay_impossible() -> None:
    row = torch.tensor([[0.0, -torch.inf, 1.0]])
    assert (_probs(row, 1.0, 3, 0.999)[0] > 0).tolist() == [True, False, True]


MIXED = SamplingRows.of(
    [0.0, 0.7, 1.0, 0.0, 1.5, 1.0], top_k=[0, 0, 3, 2, 0, 4], top_p=[1, 1, 1, 0.5, 0.6, 0.8], seeds=range(6)
)


def test_flags_follow_the_rows() -> None:
    assert not MIXED.all_greedy and MIXED.any_truncated
    greedy = SamplingRows.of([0, 1e-50], top_k=[3, 0], top_p=[1, 0.5], seeds=[1, 2])
    assert greedy.all_greedy and not greedy.any_truncated


def test_a_mixed_batch_draws_what_each_row_alone_draws() -> None:
    logits = torch.randn(6, 50, generator=torch.Generator().manual_seed(1))
    positions = torch.tensor([5, 9, 2, 4, 100, 7])
    together = sample(logits, MIXED, positions)
    for row in range(6):
        at = torch.tensor([row])
        alone = sample(logits[at], MIXED.take(at), positions[at])
        assert alone.item() == together[row].item()
        if MIXED.temperature[row] == 0:
            assert together[row] == logits[row].argmax()


def test_greedy_takes_the_lowest_of_equal_logits() -> None:
    rows = SamplingRows.of([0, 0], top_k=[0, 0], top_p=[1, 1], seeds=[0, 0])
    logits = torch.tensor([[1.0, 3.0, 3.0], [2.0, 2.0, 2.0]])
    assert sample(logits, rows, torch.tensor([1, 1])).tolist() == [1, 0]


def test_the_draw_is_the_gumbel_argmax_of_log_p() -> None:
    logits = torch.randn(3, 40, generator=torch.Generator().manual_seed(2))
    rows = SamplingRows.of([0.8] * 3, top_k=[10] * 3, top_p=[0.9] * 3, seeds=[4, 5, 6])
    positions = torch.tensor([3, 3, 8])
    noise = gumbel(NoiseKeys(rows.seeds, positions, torch.zeros(3, dtype=torch.int64), SAMPLE), 40)
    expected = (target_log_probs(logits, rows.temperature, rows.top_k, rows.top_p) + noise).argmax(-1)
    assert torch.equal(sample(logits, rows, positions), expected)


@pytest.mark.parametrize(("temperature", "top_k", "top_p"), [(1.0, 0, 1.0), (0.6, 4, 1.0), (1.4, 0, 0.8)], ids=str)
def test_draws_follow_the_distribution(temperature: float, top_k: int, top_p: float) -> None:
    n = 40_000
    row = torch.tensor([0.3, 1.2, -0.4, 0.9, 0.0])
    rows = SamplingRows.of([temperature] * n, top_k=[top_k] * n, top_p=[top_p] * n, seeds=range(n))
    tokens = sample(row.expand(n, -1), rows, torch.full((n,), 11))
    expected = target_probs(row.numpy(), temperature=temperature, top_k=top_k, top_p=float(np.float32(top_p)))
    counts = np.bincount(tokens.numpy(), minlength=5)
    assert counts[expected == 0].sum() == 0
    assert chisquare(counts[expected > 0], n * expected[expected > 0]).pvalue > 1e-3


def test_every_small_row_of_three_values_keeps_the_lower_ids() -> None:
    for values in itertools.product([0.0, 1.0, 2.0], repeat=4):
        for top_k in (1, 2, 3):
            expected = target_probs(np.array(values), top_k=top_k) > 0
            actual = _probs(torch.tensor([values]), 1.0, top_k, 1.0)[0] > 0
            assert actual.tolist() == expected.tolist()
