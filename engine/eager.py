"""The device side of a round, as one torch call after another: the CPU's way, and any device's prefill."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch

from dspark.engine.errors import EngineError
from dspark.engine.kv_pool import PagePool
from dspark.engine.packing import pack
from dspark.engine.proposals import DraftBlock, DraftOutput
from dspark.engine.slots import SlotTable
from dspark.kernels import DRAFT, SAMPLE, NoiseKeys, SamplingRows, sample, verify

if TYPE_CHECKING:
    from dspark.engine.engine import Engine


@dataclass(slots=True)
class RoundTokens:
    """What a round's verification gives each request: its accepted drafts and one token more."""

    accepted: np.ndarray  # [R] int64, drafted tokens that passed
    block: np.ndarray  # [R, n] int64, the first accepted[r] + 1 of row r


class EagerRunner:
    """Computes contexts, draft blocks and verifications of the requests in a slot table."""

    def __init__(self, engine: Engine, slots: SlotTable, pool: PagePool) -> None:
        self.engine = engine
        self.device = engine.device
        self.slots = slots
        self.pool = pool
        # The settings of the requests that ran last, and who they were: a batch changes less often than it runs.
        self._sampling: tuple[bytes, SamplingRows] | None = None

    def prefill(self, rows: np.ndarray, starts: np.ndarray, counts: np.ndarray, fresh: np.ndarray) -> np.ndarray:
        """Run `counts` [R] committed tokens of slots `rows` [R] from text positions `starts` [R] on.

        Returns the token sampled behind each row that is `fresh` [R] bool, whose prompt ends here: int64 [n].
        """
        index = pack(self.pool, rows, starts, counts)
        tokens = self.slots.tokens[rows[index.request], index.positions].astype(np.int64)
        batch = index.batch(torch.from_numpy(tokens), self.device)
        logits = self.engine.target_step(batch, logit_rows=self._tensor(np.cumsum(counts)[fresh] - 1))
        if not fresh.any():
            return np.zeros(0, dtype=np.int64)
        ended = rows[fresh]
        tokens = sample(logits, self._sampling_rows(ended), self._tensor(self.slots.context_len[ended]))
        self._refuse_overflow(logits.gather(1, tokens[:, None]))
        return tokens.cpu().numpy()

    def draft(self, rows: np.ndarray, steps: int) -> DraftOutput:
        """Draft a block for each of slots `rows` [R] and choose its first `steps` tokens."""
        drafter, cache = self.engine.drafter, self.engine.draft_cache
        assert drafter is not None and cache is not None, "drafting needs a drafter"
        starts = self.slots.context_len[rows]
        temperature = self.slots.temperature[rows]
        index = pack(self.pool, rows, starts, np.full(len(rows), drafter.block_size))
        block = DraftBlock(
            anchors=self._anchors(rows),
            starts=self._tensor(starts),
            cache_rows=self._tensor(index.cache_rows),
            attention=index.layout(self.device, causal=False),
            noise=self._draft_noise(rows) if temperature.any() else None,
            temperature=self._tensor(temperature),
            steps=steps,
        )
        return drafter.draft(block, cache)

    def verify(self, rows: np.ndarray, lengths: np.ndarray, draft: DraftOutput | None) -> RoundTokens:
        """Run the target over the anchor and the first `lengths` [R] drafted tokens of each of slots `rows` [R]."""
        starts = self.slots.context_len[rows]
        index = pack(self.pool, rows, starts, lengths + 1)
        tokens = self._anchors(rows)[:, None]  # [R, 1]
        if draft is not None:
            tokens = torch.cat([tokens, draft.tokens], dim=1)
        batch = index.batch(tokens[self._tensor(index.request), self._tensor(index.offsets)], self.device)
        logits = self.engine.target_step(batch)
        verdict = verify(
            logits,
            query_starts=batch.attention.query_starts,
            lengths=self._tensor(lengths),
            draft_tokens=None if draft is None else draft.tokens,
            draft_logits=None if draft is None else draft.logits,
            rows=self._sampling_rows(rows),
            positions=self._tensor(starts),
            generations=self._tensor(self.slots.generation[rows]),
            acceptance=self.engine.config.acceptance,
            max_length=int(lengths.max()),
        )
        last_rows = batch.attention.query_starts[:-1] + verdict.accepted
        self._refuse_overflow(logits[last_rows, verdict.next_token])
        accepted = verdict.accepted.cpu().numpy()
        block = np.zeros((len(rows), int(accepted.max()) + 1), dtype=np.int64)
        if draft is not None:
            block[:, :-1] = draft.tokens[:, : block.shape[1] - 1].cpu().numpy()
        block[np.arange(len(rows)), accepted] = verdict.next_token.cpu().numpy()
        return RoundTokens(accepted=accepted, block=block)

    def _refuse_overflow(self, chosen: torch.Tensor) -> None:
        """chosen: logits of the tokens chosen. A NaN anywhere in a row wins its argmax, so these tell of all."""
        if not bool(chosen.isfinite().all()):
            narrow = self.engine.dtype == "float16"
            raise EngineError(
                f"the target's logits are not finite in {self.engine.dtype}",
                "Use --dtype bfloat16 or float32." if narrow else "Check the target's weights and config.json.",
            )

    def _anchors(self, rows: np.ndarray) -> torch.Tensor:
        return self._tensor(self.slots.tokens[rows, self.slots.context_len[rows]].astype(np.int64))

    def _draft_noise(self, rows: np.ndarray) -> NoiseKeys:
        """Fresh noise for every block that is drafted; in coupled mode the target's own noise instead."""
        coupled = self.engine.config.acceptance == "coupled"
        generations = np.zeros(len(rows), dtype=np.int64) if coupled else self.slots.generation[rows]
        return NoiseKeys(
            seeds=self._tensor(self.slots.seeds[rows]),
            positions=self._tensor(self.slots.context_len[rows]),
            generations=self._tensor(generations),
            purpose=SAMPLE if coupled else DRAFT,
        )

    def _sampling_rows(self, rows: np.ndarray) -> SamplingRows:
        requests = self.slots.serial[rows].tobytes()
        if self._sampling is None or self._sampling[0] != requests:
            self._sampling = requests, self._read_sampling_rows(rows)
        return self._sampling[1]

    def _read_sampling_rows(self, rows: np.ndarray) -> SamplingRows:
        temperature, top_k, top_p = self.slots.temperature[rows], self.slots.top_k[rows], self.slots.top_p[rows]
        return SamplingRows(
            temperature=self._tensor(temperature),
            top_k=self._tensor(top_k),
            top_p=self._tensor(top_p),
            seeds=self._tensor(self.slots.seeds[rows]),
            all_greedy=not temperature.any(),
            any_truncated=bool(((temperature > 0) & ((top_k > 0) | (top_p < 1))).any()),
        )

    def _tensor(self, array: np.ndarray) -> torch.Tensor:
        return torch.from_numpy(array).to(self.device, non_blocking=True)
