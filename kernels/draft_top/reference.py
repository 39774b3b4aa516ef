"""One position of the draft block: keep the likeliest tokens, renormalise, and draw."""

import torch
from torch import Tensor

from dspark.kernels.draft_top.top_q import TopQ
from dspark.kernels.random import NoiseKeys
from dspark.kernels.random.reference import gumbel_at
from dspark.kernels.sampling.reference import rows_where, scale_


def draw_from_top(
    logits: Tensor, *, noise: NoiseKeys, temperature: Tensor, out: TopQ, ids: Tensor | None = None
) -> Tensor:
    """logits [R, n] fp32 of tokens ids [n] int64, rising, or of 0 .. n-1; temperature [R] fp32; out [R, K], K <= n.

    Writes softmax(logits / temperature), cut to its K likeliest tokens (the lower ids among equals) and renormalised,
    and returns tokens [R] int64 drawn from the very numbers in `out`, with the noise of their ids. Greedy rows get
    their likeliest token, and the distribution at temperature 1.
    """
    places = likeliest(logits, out.count)
    log_probs = torch.log_softmax(scale_(logits.gather(-1, places), temperature), dim=-1)
    tokens = places if ids is None else ids[places]
    out.ids.copy_(tokens)
    out.log_probs.copy_(log_probs)
    scores = torch.where(temperature[:, None] > 0, log_probs + gumbel_at(noise, tokens), log_probs)
    return tokens.gather(-1, scores.argmax(dim=-1, keepdim=True))[:, 0]


def likeliest(logits: Tensor, count: int) -> Tensor:
    """logits [R, n] -> places of the `count` largest, [R, count] int64, rising; the first among equals."""
    largest = logits.topk(count, dim=-1)
    places, last = largest.indices, largest.values[:, -1:]
    # Of more tokens that equal the last one than there is room for, topk takes any.
    crowded = rows_where((logits >= last).sum(dim=-1) > count)
    if crowded.shape[0]:
        some, least = logits.index_select(0, crowded), last[crowded]
        above, tied = some > least, some == least
        room = count - above.sum(dim=-1, keepdim=True)
        kept = above | (tied & (tied.cumsum(dim=-1, dtype=torch.int32) <= room))
        places[crowded] = kept.nonzero()[:, 1].view(-1, count)
    return places.sort(dim=-1).values
