"""The distillation kernel against autograd in float64."""

import pytest
import torch
from torch.testing import assert_close

from dspark.kernels.distillation import reference

SHARES = {"ce_share": 0.1, "l1_share": 0.9}


def make_rows(num_rows: int, num_target_rows: int, vocab_size: int):
    """Logits of the spread that a language model's have, some rows equal to the target's."""
    torch.manual_seed(vocab_size)
    target = torch.randn(num_target_rows, vocab_size) * 4
    rows = torch.randint(num_target_rows, (num_rows,))
    draft = target[rows] + torch.randn(num_rows, vocab_size) * 2
    labels = torch.randint(vocab_size, (num_rows,))
    # Half of the labels are likely ones.
    labels[::2] = draft[::2].argmax(-1)
    return draft, target, rows, labels, torch.rand(num_rows)


def autograd_oracle(draft, target, rows, labels, weights):
    """Loss terms and gradient in float64, by torch's own functions."""
    draft = draft.double().requires_grad_()
    nll = torch.nn.functional.cross_entropy(draft, labels, reduction="none")
    distance = (draft.softmax(-1) - target.double().softmax(-1)[rows]).abs().sum(-1)
    (weights.double() * (SHARES["ce_share"] * nll + SHARES["l1_share"] * distance)).sum().backward()
    target_nll = torch.nn.functional.cross_entropy(target.double()[rows], labels, reduction="none")
    return nll.detach(), target_nll, distance.detach(), draft.grad


def check(op, device, shape, *, in_place: bool, dtype=torch.float32, rounding=0.0) -> None:
    draft, target, rows, labels, weights = make_rows(*shape)
    nll, target_nll, distance, slope = autograd_oracle(draft, target, rows, labels, weights)
    moved = draft.to(device, copy=True)
    gradient = moved if in_place else torch.full_like(moved, float("nan"), dtype=dtype)
    inputs = {"target_rows": rows.to(device), "labels": labels.to(device), "weights": weights.to(device)}
    result = op(moved, target.to(device), **inputs, **SHARES, gradient=gradient)
    assert_close(result.draft_nll.cpu().double(), nll, atol=1e-5, rtol=1e-5)
    assert_close(result.target_nll.cpu().double(), target_nll, atol=1e-5, rtol=1e-5)
    assert_close(result.distance.cpu().double(), distance, atol=1e-5, rtol=1e-5)
    assert result.hits.tolist() == (draft.argmax(-1) == labels).tolist()
    # Where q and p are equal but for rounding, the sign of their difference is anybody's.
    q, p = draft.double().softmax(-1), target.double().softmax(-1)[rows]
    clear = (q - p).abs() > 1e-5 * p
    assert clear.double().mean() > 0.999
    # Two roundings to the gradient's type: of what the label does not change, then of the whole.
    before_label = slope.clone()
    before_label[torch.arange(len(labels)), labels] += SHARES["ce_share"] * weights.double()
    allowed = 1e-6 + 1e-5 * slope.abs() + rounding * (before_label.abs() + slope.abs()) * (1 + rounding)
    assert ((gradient.cpu().double() - slope).abs() <= allowed)[clear].all()
    if not in_place:
        assert torch.equal(moved.cpu(), draft)


SHAPES = pytest.mark.parametrize(
    "shape", [(1, 1, 5), (7, 3, 97), (9, 20, 4099)], ids=["one_row", "shared_rows", "blocks_and_a_rest"]
)


@SHAPES
@pytest.mark.parametrize("in_place", [False, True], ids=["beside", "in_place"])
def test_reference(shape, in_place: bool) -> None:
    check(reference.distill_rows, "cpu", shape, in_place=in_place)


@SHAPES
@pytest.mark.parametrize("in_place", [False, True], ids=["beside", "in_place"])
def test_kernel(device, shape, in_place: bool) -> None:
    from dspark.kernels.distillation.triton import distill_rows

    check(distill_rows, device, shape, in_place=in_place)


def test_kernel_at_the_size_of_a_real_vocabulary(device, gpu_only) -> None:
    from dspark.kernels.distillation.triton import distill_rows

    check(distill_rows, device, (300, 120, 49152), in_place=False)
    # The products behind the gradient take it in bfloat16, whose 8 bits are off by 2^-8 at most.
    check(distill_rows, device, (300, 120, 49152), in_place=False, dtype=torch.bfloat16, rounding=2**-8)


def test_rows_that_agree_pull_nowhere(device) -> None:
    from dspark.kernels.distillation.triton import distill_rows

    logits = torch.randn(4, 33)
    rows = torch.arange(4)
    for op, place in ((reference.distill_rows, "cpu"), (distill_rows, device)):
        moved = logits.to(place, copy=True)
        gradient = torch.empty_like(moved)
        inputs = {"target_rows": rows.to(place), "labels": rows.to(place), "weights": torch.ones(4, device=place)}
        result = op(moved, moved.clone(), **inputs, ce_share=0.0, l1_share=1.0, gradient=gradient)
        assert not result.distance.any()
        assert gradient.abs().max() < 1e-6


def test_without_a_gradient_nothing_is_written(device) -> None:
    from dspark.kernels.distillation.triton import distill_rows

    draft, target, rows, labels, weights = make_rows(3, 2, 50)
    moved = draft.to(device, copy=True)
    inputs = {"target_rows": rows.to(device), "labels": labels.to(device), "weights": weights.to(device)}
    result = distill_rows(moved, target.to(device), **inputs, **SHARES)
    assert torch.equal(moved.cpu(), draft)
    assert_close(result.distance.cpu(), (draft.softmax(-1) - target.softmax(-1)[rows]).abs().sum(-1))


def test_no_rows(device) -> None:
    from dspark.kernels.distillation.triton import distill_rows

    none = torch.zeros(0, dtype=torch.int64, device=device)
    logits = torch.zeros(0, 9, device=device)
    result = distill_rows(
        logits, torch.zeros(2, 9, device=device), target_rows=none, labels=none, weights=none.float(), **SHARES
    )
    assert result.distance.shape == (0,)
