"""Confidence logits against float64 formulas."""

import math

import pytest
import torch

from dspark.kernels.confidence import confidence_logits, headless_confidence_logits

TOLERANCE = 1e-5


@pytest.mark.parametrize("rows", [1, 7, 100])
@pytest.mark.parametrize("kind", ["hidden", "w1", "embedding"])
def test_head_writes_its_column_only(rows, kind):
    torch.manual_seed(rows)
    hidden, w1, bias = torch.randn(rows, 24), torch.randn(60, 8), torch.randn(1)
    embedding = torch.randn(rows, 8) if kind == "embedding" else None
    previous = torch.randint(60, (rows,))
    weight = torch.randn(1, 24 if kind == "hidden" else 32)
    out = torch.full((rows, 3), math.nan)
    confidence_logits(hidden, w1, previous, weight=weight, bias=bias, out=out[:, 1], embedding=embedding)
    parts = {"hidden": [hidden], "w1": [hidden, w1[previous]], "embedding": [hidden, embedding]}[kind]
    expected = torch.cat(parts, 1).double() @ weight[0].double() + bias.double()
    torch.testing.assert_close(out[:, 1].double(), expected, atol=TOLERANCE, rtol=TOLERANCE)
    assert out[:, [0, 2]].isnan().all()


@pytest.mark.parametrize("kind", ["hidden", "w1", "embedding"])
def test_head_of_a_block_is_its_columns(kind):
    torch.manual_seed(0)
    hidden, w1, bias = torch.randn(5, 4, 24), torch.randn(60, 8), torch.randn(1)
    embedding = torch.randn(5, 4, 8) if kind == "embedding" else None
    previous = torch.randint(60, (5, 4))
    weight = torch.randn(1, 24 if kind == "hidden" else 32)
    # Three positions of a block of four: strided, as the drafter passes them.
    part, out = slice(0, 3), torch.full((5, 4), math.nan)
    own = None if embedding is None else embedding[:, part]
    confidence_logits(hidden[:, part], w1, previous[:, part], weight=weight, bias=bias, out=out[:, part], embedding=own)
    parts = {"hidden": [hidden], "w1": [hidden, w1[previous]], "embedding": [hidden, embedding]}[kind]
    expected = torch.cat(parts, -1).double() @ weight[0].double() + bias.double()
    torch.testing.assert_close(out[:, part].double(), expected[:, part], atol=TOLERANCE, rtol=TOLERANCE)
    assert out[:, 3].isnan().all()


def test_head_accumulates_bf16_in_fp32():
    hidden = torch.randn(9, 512).bfloat16()
    weight, bias = torch.randn(1, 512).bfloat16(), torch.zeros(1).bfloat16()
    out = torch.empty(9)
    confidence_logits(hidden, None, torch.zeros(9).long(), weight=weight, bias=bias, out=out)
    torch.testing.assert_close(out.double(), hidden.double() @ weight[0].double(), atol=1e-4, rtol=1e-5)


@pytest.mark.parametrize("steps", [None, 4])
def test_headless_is_the_logit_of_the_largest_probability(steps):
    logits = 3 * torch.randn(*((5,) if steps is None else (5, steps)), 97)
    temperature = torch.tensor([0.0, 0.5, 1.0, 1.5, 0.0])
    out = torch.empty(logits.shape[:-1])
    headless_confidence_logits(logits, temperature=temperature, out=out)
    for row, t in enumerate(temperature.tolist()):
        largest = torch.softmax(logits[row].double() / (t or 1), -1).amax(-1)
        torch.testing.assert_close(out[row].double(), torch.logit(largest), atol=1e-4, rtol=1e-4)


def test_headless_stays_finite_when_the_draft_is_certain():
    logits = torch.zeros(1, 10)
    logits[0, 4] = 500.0
    out = torch.empty(1)
    headless_confidence_logits(logits, temperature=torch.zeros(1), out=out)
    assert torch.isfinite(out).all() and out > 15
