"""The device side of a round, as one torch call after another: the CPU's way, and any device's prefill."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch

from dspark.engine.draft_noise import DraftNoise
from dspark.engine.flights import LaunchedRound
from dspark.engine.kv_pool import PagePool
from dspark.engine.orders import RoundOrder
from dspark.engine.packing import Packing, pack
from dspark.engine.proposals import DraftBlock, DraftOutput
from dspark.engine.round_marks import RoundMarks
from dspark.engine.sampling import Sampling
from dspark.engine.signals import round_signals
from dspark.engine.slots import SlotTable
from dspark.engine.transfer import Download, upload
from dspark.kernels import (
    NoiseKeys,
    ResultField,
    SamplingRows,
    SlotField,
    allocate_lengths,
    commit_round,
    sample,
    verify,
)

if TYPE_CHECKING:
    from dspark.engine.engine import Engine


class EagerRunner:
    """Computes contexts, draft blocks and verifications of the requests in a slot table.

    Where each request stands is kept on the device, so that a round can be launched before the host knows what the one
    before gave. Results are rows [R, fields + G] of `ResultField` and the drafted tokens.
    """

    def __init__(self, engine: Engine, slots: SlotTable, pool: PagePool, *, state: torch.Tensor | None = None) -> None:
        self.engine = engine
        self.device = engine.device
        self.slots = slots
        self.pool = pool
        shape = (len(slots.status), len(SlotField))
        self.state = (
            torch.zeros(shape, dtype=torch.int64, device=self.device) if state is None else state
        )  # [S, fields]
        # The settings of the requests that ran last, and who they were: a batch changes less often than it runs.
        self._sampling: tuple[bytes, SamplingRows] | None = None
        # [T, V] fp32 of the round verified last; T may be padded.
        self._target_logits: torch.Tensor | None = None
        # Of the round at hand, where it is timed.
        self._marks: RoundMarks | None = None

    def place(self, rows: np.ndarray) -> None:
        """Tell the device where the waiting requests in slots `rows` [R] stand.

        A new request stands at the last token of its prompt, from which prefill takes it to its first anchor.
        """
        slots = self.slots
        starts = slots.context_len[rows] - (slots.emitted[rows] == 0)
        values = np.zeros((len(rows), len(SlotField)), dtype=np.int64)
        values[:, SlotField.START] = starts
        values[:, SlotField.ANCHOR] = slots.tokens[rows, starts]
        values[:, SlotField.TOKENS_LEFT] = slots.limit[rows] - slots.emitted[rows]
        values[:, SlotField.IGNORE_EOS] = slots.ignore_eos[rows]
        self.state.index_copy_(0, self._tensor(rows), self._tensor(values))

    def prefill(self, rows: np.ndarray, starts: np.ndarray, counts: np.ndarray, fresh: np.ndarray) -> Download | None:
        """Run `counts` [R] committed tokens of slots `rows` [R] from text positions `starts` [R] on.

        The result is of the rows that are `fresh` [R] bool, whose prompts end here: the token behind each.
        """
        index = pack(self.pool, rows, starts, counts)
        tokens = self.slots.tokens[rows[index.request], index.positions].astype(np.int64)
        logits = self._run_prompts(index, tokens, rows=rows, logit_rows=np.cumsum(counts)[fresh] - 1)
        if not fresh.any():
            return None
        ended = rows[fresh]
        tokens = sample(logits, self._sampling_rows(ended), self._tensor(self.slots.context_len[ended]))
        nothing = torch.zeros_like(tokens)
        out = torch.zeros(len(ended), len(ResultField), dtype=torch.int64, device=self.device)
        commit_round(
            self.state,
            slots=self._tensor(ended),
            lengths=nothing,
            accepted=nothing,
            next_tokens=tokens,
            drafts=None,
            logits=logits,
            query_starts=torch.arange(len(ended) + 1, device=self.device),
            stop_ids=self.engine.stop_id_tensor,
            out=out,
        )
        return Download(out)

    def _run_prompts(
        self, index: Packing, tokens: np.ndarray, *, rows: np.ndarray, logit_rows: np.ndarray
    ) -> torch.Tensor:
        """Run packed `tokens` [T] of slots `rows` [R]: logits [n, V] behind the tokens `logit_rows` [n]."""
        batch = index.batch(self._tensor(tokens), self.device)
        return self.engine.target_step(batch, logit_rows=self._tensor(logit_rows))

    def begin_round(self, *, timed: bool) -> None:
        """A round starts here."""
        self._marks = RoundMarks(self.device) if timed else None

    def draft(self, rows: np.ndarray, order: RoundOrder) -> DraftOutput:
        """Draft the block that is ordered for slots `rows` [R]; valid until the next one."""
        if order.proposals is not None:
            tokens, confidence = order.proposals.tokens, order.proposals.confidence_logits
            return DraftOutput(self._tensor(tokens), logits=None, confidence_logits=torch.from_numpy(confidence))
        drafter, cache = self.engine.drafter, self.engine.draft_cache
        assert drafter is not None and cache is not None, "drafting needs a drafter"
        state = self._state_of(rows)
        starts = state[:, SlotField.START]
        temperature = self.slots.temperature[rows]
        index = pack(self.pool, rows, starts, np.full(len(rows), drafter.block_width))
        block = DraftBlock(
            anchors=self._tensor(state[:, SlotField.ANCHOR]),
            starts=self._tensor(starts),
            cache_rows=self._tensor(index.cache_rows),
            attention=index.layout(self.device, causal=False),
            noise=self._draft_noise(rows, starts) if temperature.any() else None,
            temperature=self._tensor(temperature),
            steps=order.steps,
            top_k=self.engine.draft_top_k,
        )
        return drafter.draft(block, cache)

    def verify(self, rows: np.ndarray, order: RoundOrder, draft: DraftOutput | None) -> LaunchedRound:
        """Run the target over anchors and drafted tokens of slots `rows` [R], and take each request as far as it gets.

        Requests that have finished on the device have no tokens in the batch.
        """
        self._mark()
        state = self._state_of(rows)
        starts = state[:, SlotField.START]
        lengths = np.minimum(order.lengths, state[:, SlotField.TOKENS_LEFT] - 1)
        if order.budget is not None and draft is not None:
            there = np.where(state[:, SlotField.FINISHED] == 0, lengths, 0)
            lengths = self._allocate(there, draft, order.budget)
        lengths = np.where(state[:, SlotField.FINISHED] == 0, lengths, -1)
        steps = 0 if draft is None else draft.tokens.shape[1]
        out = torch.full((len(rows), len(ResultField) + steps), -1, dtype=torch.int64, device=self.device)
        if (lengths < 0).all():
            return LaunchedRound(Download(out), bucket=0, marks=None)
        index = pack(self.pool, rows, starts, lengths + 1)
        tokens = self._tensor(state[:, SlotField.ANCHOR])[:, None]  # [R, 1]
        if draft is not None:
            tokens = torch.cat([tokens, draft.tokens], dim=1)
        batch = index.batch(tokens[self._tensor(index.request), self._tensor(index.offsets)], self.device)
        logits = self._target_logits = self.engine.target_step(batch)
        self._mark()
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
            max_length=max(int(lengths.max()), 0),
            draft_top=None if draft is None else draft.top,
        )
        commit_round(
            self.state,
            slots=self._tensor(rows),
            lengths=self._tensor(lengths),
            accepted=verdict.accepted,
            next_tokens=verdict.next_token,
            drafts=None if draft is None else draft.tokens,
            logits=logits,
            query_starts=batch.attention.query_starts,
            stop_ids=self.engine.stop_id_tensor,
            out=out,
        )
        self._mark()
        return LaunchedRound(Download(out), bucket=len(logits), marks=self._marks)

    def signals(self, rows: np.ndarray, lengths: np.ndarray, draft: DraftOutput) -> dict[str, np.ndarray]:
        """What `round_signals` reads off the logits of the round just verified, before another one is launched."""
        assert self._target_logits is not None, "a round was verified"
        return round_signals(
            draft,
            self._target_logits,
            lengths=self._tensor(lengths),
            rows=self._sampling_rows(rows),
            acceptance=self.engine.config.acceptance,
        )

    def _allocate(self, caps: np.ndarray, draft: DraftOutput, budget: int) -> np.ndarray:
        """caps [R] -> drafted tokens to verify [R], so many in all."""
        out = torch.zeros(len(caps), dtype=torch.int64, device=self.device)
        allocate_lengths(
            draft.confidence_logits,
            self._tensor(caps),
            temperatures=self.engine.temperature_tensor[: draft.confidence_logits.shape[1]],
            budget=torch.tensor([budget], device=self.device),
            out=out,
        )
        return out.cpu().numpy()

    def _mark(self) -> None:
        if self._marks is not None:
            self._marks.mark()

    def _state_of(self, rows: np.ndarray) -> np.ndarray:
        """Where slots `rows` [R] stand, [R, fields]: read where it costs nothing, waited for elsewhere."""
        return self.state.cpu().numpy()[rows]

    def _draft_noise(self, rows: np.ndarray, starts: np.ndarray) -> NoiseKeys:
        rule = DraftNoise.of(self.engine.config.acceptance)
        return NoiseKeys(
            seeds=self._tensor(self.slots.seeds[rows]),
            positions=self._tensor(starts),
            generations=self._tensor(rule.generations(self.slots.generation[rows])),
            purpose=rule.purpose,
        )

    def _sampling_rows(self, rows: np.ndarray) -> SamplingRows:
        requests = self.slots.serial[rows].tobytes()
        if self._sampling is None or self._sampling[0] != requests:
            self._sampling = requests, self._read_sampling_rows(rows)
        return self._sampling[1]

    def _read_sampling_rows(self, rows: np.ndarray) -> SamplingRows:
        slots, sampling = self.slots, Sampling.of(self.slots, rows)
        return SamplingRows(
            temperature=self._tensor(slots.temperature[rows]),
            top_k=self._tensor(slots.top_k[rows]),
            top_p=self._tensor(slots.top_p[rows]),
            seeds=self._tensor(slots.seeds[rows]),
            all_greedy=sampling is Sampling.GREEDY,
            any_truncated=sampling is Sampling.TRUNCATED,
        )

    def _tensor(self, array: np.ndarray) -> torch.Tensor:
        return upload(array, self.device)
