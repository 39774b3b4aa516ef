"""Verification of whole batches, against a plain loop over requests and plain sampling."""

import numpy as np
import pytest
import torch
from sampling_oracle import target_probs
from scipy.stats import chisquare

from dspark.kernels import (
    ACCEPT,
    DRAFT,
    SAMPLE,
    NoiseKeys,
    SamplingRows,
    Verdict,
    gumbel,
    sample,
    uniform,
    verify,
)


class Batch:
    """Requests of every kind: greedy and sampled, truncated or not, 0..G tokens to verify."""

    def __init__(self, requests: int, *, vocab_size: int, gamma: int, seed: int, greedy: bool = False) -> None:
        generator = torch.Generator().manual_seed(seed)
        random = np.random.default_rng(seed)
        self.gamma, self.vocab_size = gamma, vocab_size
        self.lengths = torch.from_numpy(random.integers(0, gamma + 1, requests))
        self.query_starts = torch.cat([torch.zeros(1, dtype=torch.int64), (self.lengths + 1).cumsum(0)]).int()
        rows = int(self.query_starts[-1])
        self.target_logits = torch.randn(rows, vocab_size, generator=generator) * 2
        self.draft_logits = torch.randn(requests, gamma, vocab_size, generator=generator)
        for r in range(requests):
            start = int(self.query_starts[r])
            verified = self.target_logits[start : start + int(self.lengths[r])]
            # Drafters agree with their target most of the time.
            self.draft_logits[r, : len(verified)] = self.draft_logits[r, : len(verified)] * 0.5 + verified
        self.temperature = np.zeros(requests) if greedy else random.choice([0.0, 0.6, 1.0, 1.3], requests)
        self.top_k = random.choice([0, 0, 3], requests)
        self.top_p = random.choice([1.0, 1.0, 0.7137], requests)
        self.rows = SamplingRows.of(
            self.temperature.tolist(), top_k=self.top_k.tolist(), top_p=self.top_p.tolist(), seeds=range(requests)
        )
        self.positions = torch.from_numpy(random.integers(1, 500, requests))
        self.generations = torch.from_numpy(random.integers(1, 90, requests))
        self.draft_tokens = self._drafts(SAMPLE if seed % 2 else DRAFT)

    def _drafts(self, purpose: int) -> torch.Tensor:
        columns = []
        for k in range(self.gamma):
            keys = NoiseKeys(self.rows.seeds, self.positions + k + 1, self.generations, purpose)
            noise = gumbel(keys, self.vocab_size) * self.rows.temperature[:, None]
            columns.append((self.draft_logits[:, k] + noise).argmax(-1))
        return torch.stack(columns, dim=1)

    def verify(self, *, acceptance: str = "rejection", certain: bool = False) -> Verdict:
        return verify(
            self.target_logits,
            query_starts=self.query_starts,
            lengths=self.lengths,
            draft_tokens=self.draft_tokens,
            draft_logits=None if certain else self.draft_logits,
            rows=self.rows,
            positions=self.positions,
            generations=self.generations,
            max_length=int(self.lengths.max()),
            acceptance=acceptance,
        )

    def noise(self, request: int, position: int) -> np.ndarray:
        at = torch.tensor([request])
        keys = NoiseKeys(self.rows.seeds[at], torch.tensor([position]), torch.tensor([0]), SAMPLE)
        return gumbel(keys, self.vocab_size)[0].double().numpy()

    def uniform(self, request: int, position: int) -> float:
        at = torch.tensor([request])
        keys = NoiseKeys(self.rows.seeds[at], torch.tensor([position]), self.generations[at], ACCEPT)
        return float(uniform(keys))

    def target(self, request: int, k: int) -> np.ndarray:
        return target_probs(
            self.target_logits[int(self.query_starts[request]) + k].numpy(),
            temperature=float(self.rows.temperature[request]),
            top_k=int(self.top_k[request]),
            top_p=float(np.float32(self.top_p[request])),
        )


def _draw(probs: np.ndarray, noise: np.ndarray) -> int:
    with np.errstate(divide="ignore"):
        return int((np.log(probs) + noise).argmax())


def _verify_one(batch: Batch, request: int, *, certain: bool) -> tuple[int, int]:
    """Accept while u·q < p, else draw from max(p - q, 0): one request, in float64 and in probabilities."""
    anchor, length = int(batch.positions[request]), int(batch.lengths[request])
    temperature = float(batch.rows.temperature[request])
    for k in range(length):
        token = int(batch.draft_tokens[request, k])
        p = batch.target(request, k)
        if certain or temperature == 0:
            q = np.eye(batch.vocab_size)[token]
        else:
            q = target_probs(batch.draft_logits[request, k].numpy(), temperature=temperature)
        if batch.uniform(request, anchor + k + 1) * q[token] < p[token]:
            continue
        residual = np.maximum(p - q, 0)
        return k, _draw(residual if residual.sum() > 0 else p, batch.noise(request, anchor + k + 1))
    return length, _draw(batch.target(request, length), batch.noise(request, anchor + length + 1))


@pytest.mark.parametrize("certain", [False, True], ids=["softmax-q", "one-hot-q"])
@pytest.mark.parametrize("greedy", [False, True], ids=["mixed", "all-greedy"])
@pytest.mark.parametrize(
    ("requests", "vocab_size", "gamma"), [(1, 5, 1), (7, 11, 3), (63, 40, 7), (100, 4, 2)], ids=str
)
def test_equals_a_loop_over_requests(requests: int, vocab_size: int, gamma: int, greedy: bool, certain: bool) -> None:
    batch = Batch(requests, vocab_size=vocab_size, gamma=gamma, seed=requests * 2, greedy=greedy)
    verdict = batch.verify(certain=certain)
    expected = [_verify_one(batch, r, certain=certain) for r in range(requests)]
    assert list(zip(verdict.accepted.tolist(), verdict.next_token.tolist(), strict=True)) == expected


@pytest.mark.parametrize("greedy", [False, True], ids=["mixed", "all-greedy"])
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_coupled_text_is_what_plain_sampling_gives(seed: int, greedy: bool) -> None:
    batch = Batch(64, vocab_size=30, gamma=5, seed=seed, greedy=greedy)
    verdict = batch.verify(acceptance="coupled")
    for r, (accepted, next_token) in enumerate(
        zip(verdict.accepted.tolist(), verdict.next_token.tolist(), strict=True)
    ):
        at = torch.tensor([r])
        plain = [
            int(sample(batch.target_logits[at_row : at_row + 1], batch.rows.take(at), batch.positions[at] + k + 1))
            for k, at_row in enumerate(range(int(batch.query_starts[r]), int(batch.query_starts[r + 1])))
        ]
        emitted = [*batch.draft_tokens[r, :accepted].tolist(), next_token]
        assert emitted == plain[: accepted + 1]
        # Nothing that agrees is left behind.
        if accepted < batch.lengths[r]:
            assert batch.draft_tokens[r, accepted] != plain[accepted]
    assert 0 < int(verdict.accepted.sum()) < int(batch.lengths.sum())


def test_nothing_to_verify_is_plain_sampling() -> None:
    batch = Batch(9, vocab_size=12, gamma=2, seed=4)
    logits = batch.target_logits[:9]
    verdict = verify(
        logits,
        query_starts=torch.arange(10, dtype=torch.int32),
        lengths=torch.zeros(9, dtype=torch.int64),
        draft_tokens=None,
        draft_logits=None,
        rows=batch.rows,
        positions=batch.positions,
        generations=batch.generations,
        max_length=0,
    )
    assert verdict.accepted.tolist() == [0] * 9
    assert torch.equal(verdict.next_token, sample(logits, batch.rows, batch.positions + 1))


def test_a_draft_cut_by_minus_infinity_is_a_narrower_q() -> None:
    batch = Batch(40, vocab_size=9, gamma=3, seed=6)
    lowest = batch.draft_logits.topk(4, dim=-1, largest=False).indices
    batch.draft_logits.scatter_(-1, lowest, -torch.inf)
    batch.draft_tokens = batch._drafts(DRAFT)
    verdict = batch.verify()
    expected = [_verify_one(batch, r, certain=False) for r in range(40)]
    assert list(zip(verdict.accepted.tolist(), verdict.next_token.tolist(), strict=True)) == expected


def test_many_rounds_follow_the_target() -> None:
    n, gamma = 60_000, 2
    p = torch.tensor([[0.2, 0.7, -0.5, 0.1], [1.0, 0.0, 0.4, -1.0], [0.3, 0.3, 0.3, -2.0]])
    q = torch.tensor([[0.9, -0.2, 0.3, 0.0], [0.2, 0.6, -0.4, 0.5]])
    rows = SamplingRows.of([0.8] * n, top_k=[3] * n, top_p=[1.0] * n, seeds=range(n))
    positions = torch.full((n,), 17)
    generations = torch.full((n,), 5)
    drafted = [
        (q[k] + 0.8 * gumbel(NoiseKeys(rows.seeds, positions + k + 1, generations, DRAFT), 4)).argmax(-1)
        for k in range(gamma)
    ]
    draft_tokens = torch.stack(drafted, dim=1)
    verdict = verify(
        p.repeat(n, 1),
        query_starts=torch.arange(n + 1, dtype=torch.int32) * 3,
        lengths=torch.full((n,), gamma),
        draft_tokens=draft_tokens,
        draft_logits=q.expand(n, -1, -1),
        rows=rows,
        positions=positions,
        generations=generations,
        max_length=gamma,
    )
    emitted = torch.cat([draft_tokens, torch.zeros(n, 1, dtype=torch.int64)], dim=1)
    emitted.scatter_(1, verdict.accepted[:, None], verdict.next_token[:, None])
    for k in range(gamma + 1):
        # The rows do not depend on the text here, so every token emitted at k has this distribution.
        tokens = emitted[verdict.accepted >= k, k].numpy()
        expected = target_probs(p[k].numpy(), temperature=0.8, top_k=3)
        counts = np.bincount(tokens, minlength=4)
        assert counts[expected == 0].sum() == 0
        assert chisquare(counts[expected > 0], len(tokens) * expected[expected > 0]).pvalue > 1e-3
