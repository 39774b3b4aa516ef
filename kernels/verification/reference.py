"""Verification of draft tokens: exact rejection sampling, or agreement with the target's own draws."""

import torch
from torch import Tensor

from dspark.kernels.draft_top import TopQ
from dspark.kernels.random import ACCEPT, NoiseKeys, uniform
from dspark.kernels.sampling.reference import gumbel_argmax, rows_where, sample, sampled_log_probs, scale_, truncate
from dspark.kernels.sampling.rows import SamplingRows
from dspark.kernels.verification.verdict import Verdict

# Logits scored at once: a few rows of a real vocabulary, which then stay in a CPU's cache, or thousands of a tiny one.
_LOGITS_AT_ONCE = 200_000


def token_log_probs(scaled: Tensor, tokens: Tensor) -> Tensor:
    """scaled [n, V] logits, tokens [n] -> their log-probabilities [n], without a [n, V] softmax."""
    return scaled.gather(-1, tokens[:, None])[:, 0] - torch.logsumexp(scaled, dim=-1)


def accept_draft(log_p: Tensor, log_q: Tensor, uniforms: Tensor) -> Tensor:
    """log p(x), log q(x), u in (0, 1), all of one shape -> bool: does the draft token pass."""
    return uniforms.log() < log_p - log_q


def prefix_lengths(passed: Tensor) -> Tensor:
    """passed [R, G] bool, False where nothing is verified -> accepted [R] int64: True values before the first False."""
    return passed.cumprod(dim=-1, dtype=torch.int64).sum(dim=-1)


def residual_log_weights(log_p: Tensor, log_q: Tensor) -> Tensor:
    """log p, log q [n, V] -> log max(p - q, 0) [n, V] unnormalised; log p itself where that has no mass."""
    return _or_all(_log_difference(log_p, log_q), log_p)


def residual_of_top(log_p: Tensor, ids: Tensor, log_q: Tensor) -> Tensor:
    """The same where only tokens ids [n, K] int64 have a share log_q [n, K] in q."""
    return _or_all(log_p.scatter(-1, ids, _log_difference(log_p.gather(-1, ids), log_q)), log_p)


def residual_of_one_hot(log_p: Tensor, tokens: Tensor) -> Tensor:
    """The residual when q was one-hot at tokens [n]: p without that token; log p itself where nothing else has mass."""
    return residual_of_top(log_p, tokens[:, None], torch.zeros_like(log_p[:, :1]))


def _log_difference(log_p: Tensor, log_q: Tensor) -> Tensor:
    """log max(p - q, 0), elementwise."""
    ratio = log_q - log_p
    # log p + log(1 - q/p): no cancellation between two nearly equal probabilities.
    difference = log_p + torch.log(-torch.expm1(ratio))
    # Not `ratio >= 0`, which would let the undefined ratio of two absent tokens through.
    return torch.where(ratio < 0, difference, -torch.inf)


def _or_all(weights: Tensor, log_p: Tensor) -> Tensor:
    """Log weights [n, V], or log p where they have no mass."""
    empty = torch.isneginf(weights).all(dim=-1, keepdim=True)
    return torch.where(empty, log_p, weights)


def top_log_probs(top: TopQ, tokens: Tensor) -> Tensor:
    """Distributions of n tokens, tokens [n] drawn from them -> their log q [n]."""
    return torch.where(top.ids == tokens[:, None], top.log_probs, 0.0).sum(dim=-1)


def verify(
    target_logits: Tensor,
    *,
    query_starts: Tensor,
    lengths: Tensor,
    draft_tokens: Tensor | None,
    draft_logits: Tensor | None,
    rows: SamplingRows,
    positions: Tensor,
    generations: Tensor,
    max_length: int,
    acceptance: str = "rejection",
    draft_top: TopQ | None = None,
) -> Verdict:
    """target_logits [T, V] fp32: row query_starts[r] + k decides the token after k drafts; T may be padded.

    query_starts [R+1]; lengths [R] int64, the draft tokens verified, at most max_length, or -1: the request has no
    rows, and nothing is decided for it; draft_tokens [R, G] int64
    with G >= max_length (None where that is 0); draft_logits [R, G, V] fp32: q = softmax(draft_logits / temperature),
    or draft_top [R, G]: q itself, of its few tokens; neither: each draft token was certain; positions [R] int64, the
    anchor's text position; generations [R] int64, of the block that is verified.
    """
    live = rows_where(lengths >= 0)
    total = int((lengths + 1).sum())
    if live.shape[0] < lengths.shape[0]:
        verdict = verify(
            target_logits,
            # Requests without rows lie on the start of the one behind them.
            query_starts=torch.cat((query_starts[:-1][live], query_starts[-1:])),
            lengths=lengths[live],
            draft_tokens=None if draft_tokens is None else draft_tokens[live],
            draft_logits=None if draft_logits is None else draft_logits[live],
            rows=rows.take(live),
            positions=positions[live],
            generations=generations[live],
            max_length=max_length,
            acceptance=acceptance,
            draft_top=None if draft_top is None else draft_top[live],
        )
        accepted, tokens = torch.zeros_like(lengths), torch.zeros_like(lengths)
        accepted[live], tokens[live] = verdict.accepted, verdict.next_token
        return Verdict(accepted=accepted, next_token=tokens)
    target_logits = target_logits[:total]
    if max_length == 0 or not lengths.shape[0]:
        # One row a request, in order.
        tokens = sample(target_logits, rows, positions + 1)
        return Verdict(accepted=torch.zeros_like(tokens), next_token=tokens)
    starts = query_starts[:-1].long()
    assert draft_tokens is not None, "draft tokens to verify were announced but not given"
    assert acceptance in ("rejection", "coupled"), acceptance
    if rows.all_greedy:
        return _verify_greedy(target_logits, starts, lengths=lengths, draft_tokens=draft_tokens, max_length=max_length)
    if acceptance == "coupled":
        return _verify_coupled(
            target_logits,
            starts,
            lengths=lengths,
            draft_tokens=draft_tokens,
            rows=rows,
            positions=positions,
            max_length=max_length,
        )
    return _verify_rejection(
        target_logits,
        starts,
        lengths=lengths,
        draft_tokens=draft_tokens,
        draft_logits=draft_logits,
        draft_top=draft_top,
        rows=rows,
        positions=positions,
        generations=generations,
        max_length=max_length,
    )


def _drafted_pairs(lengths: Tensor, total: int) -> tuple[Tensor, Tensor]:
    """lengths [R] -> request and draft index of each of the `total` verified draft tokens, both [P]."""
    request = torch.arange(lengths.shape[0], device=lengths.device).repeat_interleave(lengths, output_size=total)
    before = lengths.cumsum(0) - lengths
    return request, torch.arange(total, device=lengths.device) - before[request]


def _verify_greedy(
    target_logits: Tensor, starts: Tensor, *, lengths: Tensor, draft_tokens: Tensor, max_length: int
) -> Verdict:
    best = target_logits.argmax(dim=-1)  # [T]
    steps = torch.arange(max_length, device=lengths.device)
    # Rows of a shorter request run into its neighbour's; the length masks them.
    at = (starts[:, None] + steps).clamp(max=best.shape[0] - 1)
    passed = (draft_tokens[:, :max_length] == best[at]) & (steps < lengths[:, None])
    accepted = prefix_lengths(passed)
    return Verdict(accepted=accepted, next_token=best[starts + accepted])


def _verify_coupled(
    target_logits: Tensor,
    starts: Tensor,
    *,
    lengths: Tensor,
    draft_tokens: Tensor,
    rows: SamplingRows,
    positions: Tensor,
    max_length: int,
) -> Verdict:
    accepted = torch.zeros_like(lengths)
    next_token = torch.zeros_like(draft_tokens[:, 0])
    running = torch.ones_like(lengths, dtype=torch.bool)
    # Position by position: a request's draws behind its first mismatch are never needed.
    for step in range(max_length + 1):
        at = rows_where(running)
        if at.shape[0] == 0:
            break
        offset = accepted[at]
        own = sample(target_logits.index_select(0, starts[at] + offset), rows.take(at), positions[at] + offset + 1)
        alive = running[at]
        next_token[at] = torch.where(alive, own, next_token[at])
        if step < max_length:
            running[at] = alive & (step < lengths[at]) & (draft_tokens[at, step] == own)
            accepted += running
    return Verdict(accepted=accepted, next_token=next_token)


def _verify_rejection(
    target_logits: Tensor,
    starts: Tensor,
    *,
    lengths: Tensor,
    draft_tokens: Tensor,
    draft_logits: Tensor | None,
    draft_top: TopQ | None,
    rows: SamplingRows,
    positions: Tensor,
    generations: Tensor,
    max_length: int,
) -> Verdict:
    request, offset = _drafted_pairs(lengths, target_logits.shape[0] - lengths.shape[0])
    row = starts[request] + offset
    drafted = draft_tokens[request, offset]
    sampled = rows.temperature > 0  # [R]

    passed = torch.zeros_like(drafted, dtype=torch.bool)
    greedy_pairs = rows_where(~sampled[request])
    passed[greedy_pairs] = target_logits.index_select(0, row[greedy_pairs]).argmax(dim=-1) == drafted[greedy_pairs]
    # In pieces, and never a second [T, V] tensor.
    pairs_at_once = max(_LOGITS_AT_ONCE // target_logits.shape[-1], 1)
    for pairs in torch.split(rows_where(sampled[request]), pairs_at_once):
        owner = request[pairs]
        scores = _accept_sampled(
            target_logits.index_select(0, row[pairs]),
            None if draft_logits is None else draft_logits[owner, offset[pairs]],
            None if draft_top is None else draft_top[owner, offset[pairs]],
            tokens=drafted[pairs],
            rows=rows.take(owner),
            keys=NoiseKeys(
                seeds=rows.seeds[owner],
                positions=positions[owner] + offset[pairs] + 1,
                generations=generations[owner],
                purpose=ACCEPT,
            ),
        )
        passed[pairs] = torch.where(sampled[owner], scores, passed[pairs])

    grid = torch.zeros(lengths.shape[0], max_length, dtype=torch.bool, device=lengths.device)
    grid[request, offset] = passed
    accepted = prefix_lengths(grid)

    next_token = torch.empty_like(accepted)
    greedy = rows_where(~sampled)
    next_token[greedy] = target_logits.index_select(0, (starts + accepted)[greedy]).argmax(dim=-1)
    chosen = rows_where(sampled)
    count = accepted[chosen]
    settings = rows.take(chosen)
    at = count.clamp(max=max_length - 1)
    weights = _commit_log_weights(
        sampled_log_probs(target_logits.index_select(0, starts[chosen] + count), settings),
        None if draft_logits is None else draft_logits[chosen, at],
        None if draft_top is None else draft_top[chosen, at],
        tokens=draft_tokens[chosen, at],
        temperature=settings.temperature,
        bonus=count == lengths[chosen],
    )
    draws = gumbel_argmax(weights, settings.seeds, positions[chosen] + count + 1)
    next_token[chosen] = torch.where(sampled[chosen], draws, next_token[chosen])
    return Verdict(accepted=accepted, next_token=next_token)


def _accept_sampled(
    logits: Tensor,
    draft_logits: Tensor | None,
    draft_top: TopQ | None,
    *,
    tokens: Tensor,
    rows: SamplingRows,
    keys: NoiseKeys,
) -> Tensor:
    """logits, draft_logits [n, V], both overwritten; draft_top, tokens [n]; rows and keys of n -> bool [n]."""
    scaled = scale_(logits, rows.temperature)
    if rows.any_truncated:
        scaled = truncate(scaled, rows.top_k, rows.top_p)
    log_p = token_log_probs(scaled, tokens)
    if draft_top is not None:
        log_q = top_log_probs(draft_top, tokens)
    elif draft_logits is not None:
        log_q = token_log_probs(scale_(draft_logits, rows.temperature), tokens)
    else:
        log_q = torch.zeros_like(log_p)
    return accept_draft(log_p, log_q, uniform(keys))


def _commit_log_weights(
    log_p: Tensor,
    draft_logits: Tensor | None,
    draft_top: TopQ | None,
    *,
    tokens: Tensor,
    temperature: Tensor,
    bonus: Tensor,
) -> Tensor:
    """log_p [n, V], draft_logits [n, V] (overwritten), the others [n] -> [n, V]: p for a bonus, else the residual."""
    if draft_top is not None:
        residual = residual_of_top(log_p, draft_top.ids.long(), draft_top.log_probs)
    elif draft_logits is not None:
        residual = residual_log_weights(log_p, torch.log_softmax(scale_(draft_logits, temperature), dim=-1))
    else:
        residual = residual_of_one_hot(log_p, tokens)
    return torch.where(bonus[:, None], log_p, residual)
