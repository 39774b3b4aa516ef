"""The Markov step against a float64 formula, and its draws against the distribution they must follow."""

import pytest
import torch

from dspark.kernels.markov import markov_step
from dspark.kernels.random import DRAFT, NoiseKeys, gumbel

TOLERANCE = 1e-5


def make_keys(rows, *, purpose=DRAFT):
    return NoiseKeys(
        seeds=torch.arange(rows) + 100,
        positions=torch.arange(rows),
        generations=torch.ones(rows).long(),
        purpose=purpose,
    )


@pytest.mark.parametrize("rows", [1, 7, 63])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
@pytest.mark.parametrize("given", [False, True], ids=["w1", "embedding"])
def test_bias_is_added_in_place_into_a_strided_column(rows, dtype, given):
    torch.manual_seed(rows)
    block = torch.randn(rows, 5, 131)
    before = block.clone()
    w1, w2 = torch.randn(131, 12).to(dtype), torch.randn(131, 12).to(dtype)
    previous = torch.randint(131, (rows,))
    embedding = torch.randn(rows, 12) if given else None
    source = embedding if given else w1[previous]
    expected = before[:, 2].double() + source.double() @ w2.double().T
    tokens = markov_step(block[:, 2], w1, w2, previous, noise=None, temperature=torch.zeros(rows), embedding=embedding)
    torch.testing.assert_close(block[:, 2].double(), expected, atol=TOLERANCE, rtol=TOLERANCE)
    assert torch.equal(tokens, block[:, 2].argmax(-1))
    untouched = [0, 1, 3, 4]
    assert torch.equal(block[:, untouched], before[:, untouched])


def test_logits_stay_when_nobody_keeps_them():
    torch.manual_seed(0)
    logits, w1, w2 = torch.randn(7, 131), torch.randn(131, 12), torch.randn(131, 12)
    before, previous = logits.clone(), torch.randint(131, (7,))
    tokens = markov_step(logits, w1, w2, previous, noise=None, temperature=torch.zeros(7), keep_logits=False)
    assert torch.equal(logits, before)
    assert torch.equal(tokens, (before.double() + w1[previous].double() @ w2.double().T).argmax(-1))


def test_rank_zero_leaves_the_logits():
    logits = torch.randn(3, 50)
    before = logits.clone()
    tokens = markov_step(
        logits, None, None, torch.zeros(3).long(), noise=make_keys(3), temperature=torch.tensor([0.0, 1.0, 0.0])
    )
    assert torch.equal(logits, before)
    assert tokens[[0, 2]].tolist() == before[[0, 2]].argmax(-1).tolist()


def test_ties_go_to_the_lowest_id_also_beside_sampled_rows():
    logits = torch.zeros(2, 40)
    logits[0, [5, 9, 30]] = 3.0
    tokens = markov_step(
        logits, None, None, torch.zeros(2).long(), noise=make_keys(2), temperature=torch.tensor([0.0, 1.0])
    )
    assert tokens[0] == 5


def test_sampled_rows_take_the_gumbel_argmax_of_their_own_key():
    logits = torch.randn(6, 77)
    temperature = torch.tensor([0.0, 0.3, 0.7, 1.0, 1.5, 0.0])
    keys = make_keys(6)
    tokens = markov_step(logits, None, None, torch.zeros(6).long(), noise=keys, temperature=temperature)
    noise = gumbel(keys, 77).double()
    for row, t in enumerate(temperature.tolist()):
        scores = logits[row].double() / t + noise[row] if t else logits[row].double()
        assert tokens[row] == scores.argmax()


def test_draws_follow_the_softmax():
    n = 100_000
    logits = torch.tensor([0.3, -1.0, 1.2, 0.0]).expand(n, 4).clone()
    temperature = torch.full((n,), 0.7)
    tokens = markov_step(logits, None, None, torch.zeros(n).long(), noise=make_keys(n), temperature=temperature)
    expected = torch.softmax(logits[0].double() / 0.7, -1) * n
    chi2 = ((torch.bincount(tokens, minlength=4) - expected) ** 2 / expected).sum()
    assert chi2 < 21.1  # 3 degrees of freedom, p = 1e-4
