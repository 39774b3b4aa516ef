"""Drafts from the likeliest tokens alone, and their verification, against float64 and plain definitions."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from chi_square import fit_p_value
from sampling_oracle import target_probs

from dspark.kernels import DRAFT, NoiseKeys, SamplingRows, TopQ, draw_from_top, gumbel, verify
from dspark.kernels.random.reference import gumbel_at
from dspark.kernels.verification.reference import residual_of_top, top_log_probs

TEMPERATURES = (0.0, 0.6, 1.0, 1.7)
FP32 = {"atol": 1e-6, "rtol": 1e-5}


def make_keys(rows: int, *, generation: int = 2) -> NoiseKeys:
    numbers = torch.arange(rows)
    return NoiseKeys(
        seeds=numbers * 7 - 3, positions=numbers + 5, generations=torch.full((rows,), generation), purpose=DRAFT
    )


def make_logits(rows: int, size: int, *, tied: bool) -> torch.Tensor:
    """tied: whole numbers, so that most counts cut between equals."""
    logits = 2 * torch.randn(rows, size, generator=torch.Generator().manual_seed(size))
    return logits.round() if tied else logits


def spread(top: TopQ, vocab_size: int) -> np.ndarray:
    """q [R, V] float64, of a distribution each."""
    q = np.zeros((len(top.ids), vocab_size))
    np.put_along_axis(q, top.ids.long().numpy(), np.exp(top.log_probs.double().numpy()), axis=1)
    return q


@pytest.mark.parametrize("tied", [False, True], ids=["distinct", "ties"])
@pytest.mark.parametrize(("size", "count"), [(3, 1), (3, 2), (40, 5), (40, 39), (40, 40), (1000, 16)], ids=str)
def test_q_is_that_of_its_likeliest_tokens_renormalised(size: int, count: int, tied: bool) -> None:
    logits = make_logits(8, size, tied=tied)
    temperature = torch.tensor(TEMPERATURES * 2)
    out = TopQ.uniform(8, count=count)
    before = logits.clone()
    tokens = draw_from_top(logits, noise=make_keys(8), temperature=temperature, out=out)
    assert torch.equal(logits, before)
    expected = np.stack(
        [
            target_probs(row.numpy(), temperature=float(t) or 1.0, top_k=count)
            for row, t in zip(logits, temperature, strict=True)
        ]
    )
    assert (out.ids.diff() > 0).all()
    np.testing.assert_array_equal(out.ids, [np.flatnonzero(row) for row in expected])
    np.testing.assert_allclose(spread(out, size), expected, atol=1e-6, rtol=1e-5)
    np.testing.assert_array_equal(tokens[temperature == 0], logits[temperature == 0].argmax(-1))


@pytest.mark.parametrize("count", [1, 4, 12])
def test_the_draw_is_the_best_of_what_is_kept_with_the_noise_of_its_ids(count: int) -> None:
    ids = torch.arange(3, 75, 6)
    logits = make_logits(len(TEMPERATURES) * 20, len(ids), tied=False)
    temperature = torch.tensor(TEMPERATURES).repeat(20)
    keys, out = make_keys(len(logits)), TopQ.uniform(len(logits), count=count)
    tokens = draw_from_top(logits, noise=keys, temperature=temperature, out=out, ids=ids)
    noise = gumbel(keys, 75).double().numpy()
    for row, (chosen, t) in enumerate(zip(tokens.tolist(), temperature.tolist(), strict=True)):
        q = np.zeros(75)
        q[ids] = target_probs(logits[row].numpy(), temperature=t, top_k=count)
        with np.errstate(divide="ignore"):
            assert chosen == (np.log(q) + noise[row]).argmax()


def test_draws_follow_q() -> None:
    rows = 20_000
    logits = make_logits(1, 9, tied=True).expand(rows, -1)
    out = TopQ.uniform(rows, count=4)
    tokens = draw_from_top(logits, noise=make_keys(rows), temperature=torch.full((rows,), 1.3), out=out)
    expected = target_probs(logits[0].numpy(), temperature=1.3, top_k=4)
    assert fit_p_value([(np.bincount(tokens, minlength=9), expected)]) > 1e-3


def test_noise_of_single_tokens_is_that_of_the_whole_vocabulary() -> None:
    tokens = torch.randint(5000, (6, 30), generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(gumbel_at(make_keys(6), tokens), gumbel(make_keys(6), 5000).gather(1, tokens), **FP32)


@pytest.mark.parametrize("broken", [slice(None), slice(2, 3), slice(5, None)], ids=["all", "one", "half"])
def test_logits_that_overflowed_still_give_tokens_of_the_vocabulary(broken: slice) -> None:
    logits = make_logits(4, 10, tied=True)
    logits[:, broken] = torch.nan
    out = TopQ.uniform(4, count=3)
    tokens = draw_from_top(logits, noise=make_keys(4), temperature=torch.tensor(TEMPERATURES), out=out)
    for ids in (tokens, out.ids):
        assert ((ids >= 0) & (ids < 10)).all()


# Verification


def test_the_residual_is_what_p_has_beyond_q() -> None:
    logits = make_logits(30, 50, tied=False)
    p = np.stack(
        [target_probs(row.numpy(), temperature=0.9, top_k=k) for row, k in zip(logits, (0, 7, 20) * 10, strict=True)]
    )
    out = TopQ.uniform(30, count=6)
    q_logits = logits + 0.5 * make_logits(30, 50, tied=True)
    tokens = draw_from_top(q_logits, noise=make_keys(30), temperature=torch.full((30,), 1.2), out=out)
    q = np.stack([target_probs(row.numpy(), temperature=float(np.float32(1.2)), top_k=6) for row in q_logits])
    np.testing.assert_allclose(top_log_probs(out, tokens).double().exp(), q[np.arange(30), tokens], rtol=1e-5)
    with np.errstate(divide="ignore"):
        log_p = torch.from_numpy(np.log(p))
    residual = residual_of_top(log_p, out.ids.long(), out.log_probs.double()).exp()
    np.testing.assert_allclose(residual, np.maximum(p - q, 0), atol=1e-7)


def test_nothing_beyond_q_leaves_p_itself() -> None:
    log_p = torch.tensor([[0.25, 0.0, 0.75]]).log()
    assert torch.equal(residual_of_top(log_p, torch.tensor([[0, 2]]), log_p[:, [0, 2]]), log_p)


@pytest.mark.parametrize("count", [1, 2, 3])
def test_one_token_has_the_targets_distribution(count: int) -> None:
    """Over every draft: accepted with min(1, p / q), else replaced from the residual."""
    generator = torch.Generator().manual_seed(count)
    for _ in range(20):
        p = torch.randn(4, generator=generator, dtype=torch.float64).mul(1.5).softmax(-1)
        q = torch.from_numpy(target_probs(torch.randn(4, generator=generator).numpy(), top_k=count))
        ids = q.nonzero().T
        residual = residual_of_top(p.log()[None], ids, q[ids].log())[0].softmax(-1)
        emitted = torch.zeros(4, dtype=torch.float64)
        for token in ids[0].tolist():
            passes = min(1.0, float(p[token] / q[token]))
            emitted[token] += q[token] * passes
            emitted += q[token] * (1 - passes) * residual
        torch.testing.assert_close(emitted, p, atol=1e-12, rtol=0)


@pytest.mark.parametrize("acceptance", ["rejection", "coupled"])
@pytest.mark.parametrize("count", [1, 3, 8])
def test_batches_are_verified_as_with_the_same_q_over_the_whole_vocabulary(count: int, acceptance: str) -> None:
    requests, gamma, size = 60, 3, 30
    lengths = torch.tensor([3, 0, 2, -1, 1, 3] * 10)
    rows = SamplingRows.of([0.0, 0.7, 1.2] * 20, top_k=[0, 0, 0, 5] * 15, top_p=[1.0, 0.9] * 30, seeds=range(requests))
    starts = torch.cat([torch.zeros(1, dtype=torch.int64), (lengths + 1).cumsum(0)])
    target = make_logits(int(starts[-1]), size, tied=False)
    top, tokens = TopQ.uniform(requests, gamma, count=count), torch.zeros(requests, gamma, dtype=torch.int64)
    for request, k in itertools.product(range(requests), range(gamma)):
        near = target[min(int(starts[request]) + k, len(target) - 1)] + make_logits(1, size, tied=True)[0] / 4
        at = torch.tensor([request])
        keys = NoiseKeys(rows.seeds[at], torch.tensor([k]), at, DRAFT)
        one = top[at, k]
        tokens[request, k] = draw_from_top(near[None], noise=keys, temperature=rows.temperature[at], out=one)[0]
        top.ids[request, k], top.log_probs[request, k] = one.ids[0], one.log_probs[0]
    # Times the temperature, by which verification divides.
    heat = torch.where(rows.temperature > 0, rows.temperature, 1.0)[:, None, None]
    whole = torch.full((requests, gamma, size), -torch.inf).scatter_(-1, top.ids.long(), top.log_probs * heat)
    verdicts = [
        verify(
            target,
            query_starts=starts,
            lengths=lengths,
            draft_tokens=tokens,
            rows=rows,
            positions=torch.arange(requests) * 3,
            generations=torch.arange(requests) % 4,
            max_length=gamma,
            acceptance=acceptance,
            draft_logits=draft_logits,
            draft_top=draft_top,
        )
        for draft_logits, draft_top in ((None, top), (whole, None))
    ]
    live = lengths >= 0
    assert torch.equal(verdicts[0].accepted[live], verdicts[1].accepted[live])
    assert torch.equal(verdicts[0].next_token[live], verdicts[1].next_token[live])
    assert 0 < int(verdicts[0].accepted.sum()) < int(lengths.clamp(min=0).sum())
