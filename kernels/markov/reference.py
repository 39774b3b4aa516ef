"""One position of the draft block: add the Markov bias to its logits and choose its token."""

import torch
from torch import Tensor
from torch.nn.functional import embedding as lookup

from dspark.kernels.random import NoiseKeys, gumbel


def markov_step(
    logits: Tensor,
    w1: Tensor | None,
    w2: Tensor | None,
    previous: Tensor,
    *,
    noise: NoiseKeys | None,
    temperature: Tensor,
    embedding: Tensor | None = None,
    keep_logits: bool = True,
) -> Tensor:
    """logits [R, V] fp32, changed in place; w1, w2 [V, r]; previous [R] int64; temperature [R] fp32; embedding [R, r].

    Returns tokens [R] int64. `noise` None says that every row is greedy, which spares the draw. With `keep_logits` off
    the logits stay as they were, which spares the GPU a write of [R, V] where nobody reads q.
    """
    if w2 is not None:
        if embedding is None:
            assert w1 is not None
            embedding = lookup(previous, w1)
        factors = (embedding.float(), w2.float().t())
        logits = logits.addmm_(*factors) if keep_logits else torch.addmm(logits, *factors)
    if noise is None:
        return logits.argmax(dim=-1)
    # argmax(logits / t + g) = argmax(logits + t * g), and t = 0 leaves the logits alone: greedy rows need no mask.
    scores = gumbel(noise, logits.shape[-1]).mul_(temperature[:, None]).add_(logits)
    return scores.argmax(dim=-1)
