"""The chunked loss against autograd in float64, which holds all logits at once."""

import pytest
import torch
from torch.nn.functional import cross_entropy
from torch.testing import assert_close
from torch.utils._python_dispatch import TorchDispatchMode

from dspark.engine.models.layers import Head
from dspark.engine.training.batches import Chunk
from dspark.engine.training.distillation import Comparison, JointHead, compare, distillation_loss

VOCAB, HIDDEN, RANK = 61, 12, 5
CHUNKS = (Chunk(slice(0, 7), slice(0, 3)), Chunk(slice(7, 8), slice(3, 4)), Chunk(slice(8, 20), slice(4, 11)))


def inputs():
    torch.manual_seed(3)
    target_rows = torch.cat(
        [
            torch.randint(
                chunk.target_rows.start, chunk.target_rows.stop, (chunk.positions.stop - chunk.positions.start,)
            )
            for chunk in CHUNKS
        ]
    )
    comparison = Comparison(
        target_hidden=torch.randn(11, HIDDEN),
        target_rows=target_rows,
        labels=torch.randint(VOCAB, (20,)),
        weights=torch.rand(20),
        chunks=CHUNKS,
        ce_share=0.1,
        l1_share=0.9,
    )
    return (
        torch.randn(20, HIDDEN),
        torch.randn(20, RANK),
        torch.randn(VOCAB, RANK),
        torch.randn(VOCAB, HIDDEN),
        comparison,
    )


@pytest.mark.parametrize("markov", [True, False], ids=["with_markov_head", "without"])
def test_loss_and_gradients_are_those_of_autograd(markov):
    hidden, into_w2, w2, head, comparison = inputs()
    leaves = [hidden, into_w2, w2] if markov else [hidden]
    exact = [leaf.double().requires_grad_() for leaf in leaves]
    logits = exact[0] @ head.double().T
    if markov:
        logits = logits + exact[1] @ exact[2].T
    p = (comparison.target_hidden.double() @ head.double().T).softmax(-1)[comparison.target_rows]
    nll = cross_entropy(logits, comparison.labels, reduction="none")
    distance = (logits.softmax(-1) - p).abs().sum(-1)
    expected = (comparison.weights * (0.1 * nll + 0.9 * distance)).sum()
    # What stands behind the loss scales its gradient.
    (3 * expected).backward()

    own = [leaf.clone().requires_grad_() for leaf in leaves]
    joint = JointHead(Head(head), rank=RANK if markov else 0, dtype=torch.float32)
    loss, rows = distillation_loss(own[0], *(own[1:] if markov else (None, None)), joint, comparison)
    (3 * loss).backward()
    assert_close(loss.double(), expected, atol=1e-5, rtol=1e-5)
    assert_close(rows.draft_nll.double(), nll, atol=1e-5, rtol=1e-5)
    assert_close(rows.distance.double(), distance, atol=1e-5, rtol=1e-5)
    for ours, theirs in zip(own, exact, strict=True):
        assert_close(ours.grad.double(), theirs.grad, atol=1e-5, rtol=1e-4)


def test_comparing_alone_gives_the_same_terms():
    hidden, into_w2, w2, head, comparison = inputs()
    joint = JointHead(Head(head), rank=RANK, dtype=torch.float32)
    _, rows = distillation_loss(hidden, into_w2, w2, joint, comparison)
    alone = compare(hidden, into_w2, joint, comparison)
    for name in ("draft_nll", "target_nll", "distance", "hits"):
        assert_close(getattr(alone, name), getattr(rows, name), atol=0, rtol=0)


def test_no_tensor_of_all_positions_logits_is_made():
    hidden, into_w2, w2, head, comparison = inputs()
    joint = JointHead(Head(head), rank=RANK, dtype=torch.float32)
    largest = 0

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            nonlocal largest
            result = function(*args, **(kwargs or {}))
            if isinstance(result, torch.Tensor) and result.ndim == 2 and result.shape[1] == VOCAB:
                largest = max(largest, result.shape[0])
            return result

    with Watch():
        loss, _ = distillation_loss(
            hidden.requires_grad_(), into_w2.requires_grad_(), w2.requires_grad_(), joint, comparison
        )
        loss.backward()
    # The largest chunk, or the head itself.
    assert 12 <= largest < len(hidden)
