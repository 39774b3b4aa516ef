"""Logits of the probability that a drafted token is accepted, given that those before it were."""

import torch
from torch import Tensor
from torch.nn.functional import embedding as lookup

# A draft distribution that is one-hot in fp32 would give an infinite logit, which no trace can hold.
_SMALLEST_REST = 2.0**-24


def confidence_logits(
    hidden: Tensor,
    w1: Tensor | None,
    previous: Tensor,
    *,
    weight: Tensor,
    bias: Tensor,
    out: Tensor,
    embedding: Tensor | None = None,
) -> None:
    """hidden [R, H]; w1 [V, r]; previous [R] int64; weight [1, H] or [1, H + r]; bias [1]; embedding [R, r].

    Writes weight . [hidden ; embedding] + bias into out [R] fp32, accumulated in fp32. A weight of H columns has no
    Markov part, and then neither w1 nor embedding is read. With a second axis k in hidden [R, k, H], previous, out and
    embedding, one call does all positions of a block, once the tokens before them are known.
    """
    features = hidden.float()
    if weight.shape[1] != hidden.shape[-1]:
        if embedding is None:
            assert w1 is not None
            embedding = lookup(previous, w1)
        features = torch.cat((features, embedding.float()), dim=-1)
    out.copy_(torch.addmv(bias.float(), features.flatten(0, -2), weight[0].float()).view(out.shape))


def headless_confidence_logits(logits: Tensor, *, temperature: Tensor, out: Tensor) -> None:
    """logits [R, V] or [R, k, V] fp32; temperature [R] fp32; out [R] or [R, k] fp32.

    The logit of max softmax(logits / temperature), at temperature 1 for greedy rows: a function of the draft
    distribution alone, so that a drafted token never decides its own admission.
    """
    divisor = torch.where(temperature > 0, temperature, 1.0).view(-1, *[1] * (logits.dim() - 1))
    largest = logits.amax(dim=-1, keepdim=True)
    rest = ((logits - largest) / divisor).exp_().sum(dim=-1).sub_(1.0).clamp_(min=_SMALLEST_REST)
    out.copy_(rest.log_().neg_())
