"""The target distribution (temperature, top-k, top-p) and the target's own draw from it."""

import torch
from torch import Tensor

from dspark.kernels.random import SAMPLE, NoiseKeys, gumbel
from dspark.kernels.sampling.rows import SamplingRows


def rows_where(mask: Tensor) -> Tensor:
    """mask [n] bool -> indices of the rows to compute, at least those where it holds.

    Reading a mask costs nothing on the CPU. Elsewhere it would wait for the device, so all rows are computed there and
    the caller selects by the mask.
    """
    if mask.device.type == "cpu":
        return mask.nonzero()[:, 0]
    return torch.arange(mask.shape[0], device=mask.device)


def scale_(logits: Tensor, temperature: Tensor) -> Tensor:
    """logits [n, V], temperature [n] -> (logits - largest) / temperature, in place; greedy rows as at temperature 1."""
    safe = torch.where(temperature > 0, temperature, torch.ones_like(temperature))
    # With its largest value at 0 a row cannot overflow, however small the temperature. In place because on a CPU fresh
    # memory for a vocabulary's rows costs more than the arithmetic.
    return logits.sub_(logits.amax(dim=-1, keepdim=True)).div_(safe[:, None].to(logits.dtype))


def _descending(values: Tensor) -> Tensor:
    """values [n, V] -> each row from its largest to its smallest."""
    if values.device.type == "cpu":
        # numpy sorts floats with vector instructions, about thirty times faster than torch on a CPU.
        ordered = values.numpy().copy()
        ordered.sort(axis=-1)
        return torch.from_numpy(ordered).flip(-1)
    return values.sort(dim=-1, descending=True).values


def kept_tokens(scaled: Tensor, top_k: Tensor, top_p: Tensor) -> Tensor:
    """scaled [n, V], top_k [n], top_p [n] -> [n, V] bool, the tokens that top-k and then top-p leave.

    Top-p keeps the smallest prefix whose mass, renormalised after top-k, reaches it, and at least one token. Among
    equal logits the lower ids stay.
    """
    vocab_size = scaled.shape[-1]
    limit = torch.where(top_k > 0, top_k.clamp(max=vocab_size), vocab_size)[:, None]  # [n, 1]
    ordered = _descending(scaled)  # [n, V]
    if scaled.device.type == "cpu":
        # What top-k cuts everywhere need not be summed; elsewhere reading the limits would wait for the device.
        ordered = ordered[:, : int(limit.max())]
    mass = (ordered - ordered[:, :1]).exp_().cumsum(dim=-1, dtype=torch.float64)
    wanted = top_p[:, None].double() * mass.gather(-1, limit - 1)
    reached = 1 + (mass < wanted).sum(dim=-1, keepdim=True)
    # 1 means off, also for tokens whose mass is lost in the sum's rounding.
    count = torch.where(top_p[:, None] < 1, torch.minimum(reached, limit), limit)

    threshold = ordered.gather(-1, count - 1)
    kept = scaled >= threshold
    crowded = rows_where(kept.sum(dim=-1) > count[:, 0])
    if crowded.shape[0] == 0:
        return kept
    # Of the tokens that equal the last one kept, only as many stay as the count has room for.
    scaled, threshold, count = scaled.index_select(0, crowded), threshold[crowded], count[crowded]
    above, tied = scaled > threshold, scaled == threshold
    room = count - above.sum(dim=-1, keepdim=True)
    return kept.index_copy(0, crowded, above | (tied & (tied.cumsum(dim=-1, dtype=torch.int32) <= room)))


def truncate(scaled: Tensor, top_k: Tensor, top_p: Tensor) -> Tensor:
    """scaled [n, V] -> the same with -inf outside the kept tokens; only rows that truncate are sorted on the CPU."""
    rows = rows_where((top_k > 0) | (top_p < 1))
    if rows.shape[0] == 0:
        return scaled
    # index_select, here and elsewhere, because a row taken by an index tensor is copied ten times slower on a CPU.
    some = scaled.index_select(0, rows)
    kept = kept_tokens(some, top_k[rows], top_p[rows])
    return scaled.index_copy(0, rows, some.masked_fill_(kept.logical_not_(), -torch.inf))


def one_hot_log_probs(tokens: Tensor, like: Tensor) -> Tensor:
    """tokens [n] int64, like [n, V] -> 0 at the token, -inf elsewhere."""
    return torch.full_like(like, -torch.inf).scatter_(-1, tokens[:, None], 0.0)


def target_log_probs(
    logits: Tensor, temperature: Tensor, top_k: Tensor | None = None, top_p: Tensor | None = None
) -> Tensor:
    """logits [n, V]; temperature, top_k, top_p [n] -> log p [n, V], -inf outside; temperature 0 is one-hot.

    top_k None (with top_p None) says on the host that no row truncates.
    """
    scaled = scale_(logits.clone(), temperature)
    if top_k is not None and top_p is not None:
        scaled = truncate(scaled, top_k, top_p)
    log_probs = torch.log_softmax(scaled, dim=-1)
    greedy = (temperature == 0)[:, None]
    return torch.where(greedy, one_hot_log_probs(logits.argmax(dim=-1), logits), log_probs)


def sampled_log_probs(logits: Tensor, rows: SamplingRows) -> Tensor:
    """logits [R, V], overwritten -> log p [R, V] of sampled rows; what greedy rows hold is not to be read."""
    scaled = scale_(logits, rows.temperature)
    if rows.any_truncated:
        scaled = truncate(scaled, rows.top_k, rows.top_p)
    return torch.log_softmax(scaled, dim=-1)


def gumbel_argmax(log_weights: Tensor, seeds: Tensor, positions: Tensor) -> Tensor:
    """log_weights [R, V] (any normalisation) -> [R] int64, the target's draw for text positions [R]."""
    keys = NoiseKeys(seeds=seeds, positions=positions, generations=torch.zeros_like(positions), purpose=SAMPLE)
    return (log_weights + gumbel(keys, log_weights.shape[-1])).argmax(dim=-1)


def sample(logits: Tensor, rows: SamplingRows, positions: Tensor) -> Tensor:
    """logits [R, V] fp32; positions [R] int64, of the token being decided -> tokens [R] int64."""
    if rows.all_greedy:
        return logits.argmax(dim=-1)
    sampled = rows.temperature > 0
    chosen = rows_where(sampled)
    settings = rows.take(chosen)
    draws = gumbel_argmax(
        sampled_log_probs(logits.index_select(0, chosen), settings), settings.seeds, positions[chosen]
    )
    greedy = rows_where(~sampled)
    tokens = torch.empty_like(positions)
    tokens[greedy] = logits.index_select(0, greedy).argmax(dim=-1)
    # Where every row was computed, greedy rows keep their argmax.
    tokens[chosen] = torch.where(sampled[chosen], draws, tokens[chosen])
    return tokens
