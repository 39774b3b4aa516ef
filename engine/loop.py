"""The decode loop: continuous batching of draft-and-verify rounds."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from dspark.engine.counts import CountTable
from dspark.engine.eager import EagerRunner, RoundTokens
from dspark.engine.errors import EngineError, RequestError
from dspark.engine.graphs.runner import GraphRunner
from dspark.engine.kv_pool import PagePool
from dspark.engine.proposals import DraftOutput
from dspark.engine.requests import Completion, Request
from dspark.engine.scheduler.policies import ScheduleView
from dspark.engine.seeds import fold_seed, row_seed
from dspark.engine.slots import FREE, RUNNING, WAITING, SlotTable
from dspark.engine.stopping import StopText, cut_at_stop_ids

if TYPE_CHECKING:
    from dspark.engine.engine import Engine


_EXHAUSTED = object()


@dataclass(slots=True)
class Kept:
    """What of a round's tokens stays after stops."""

    tokens: np.ndarray  # [R] int64, how many
    stopped: np.ndarray  # [R] bool, a stop token or stop string ended the request


class DecodeLoop:
    """Runs requests to completion, `concurrency` at a time.

    One iteration: reserve pages for the running requests, let waiting ones in and prefill them, then one round over
    all that run: draft, schedule, verify, commit.
    """

    def __init__(self, engine: Engine, requests: Iterable[Request]) -> None:
        self.engine = engine
        self.stats = engine.stats
        self.gamma = engine.gamma
        self._source = iter(requests)
        self._source_open = True
        self._done: deque[Completion] = deque()
        num_slots = engine.concurrency
        self.slots = SlotTable(num_slots, max_context=engine.max_context, gamma=self.gamma)
        self.counts = CountTable(num_slots, gamma=self.gamma)
        self.pool = PagePool(
            engine.num_pages,
            engine.page_size,
            num_slots=num_slots,
            max_pages_per_slot=engine.pages_per_request,
        )
        self._runner = (
            EagerRunner(engine, self.slots, self.pool)
            if engine.graphs is None
            else GraphRunner(engine, self.slots, self.pool, graphs=engine.graphs)
        )
        self._stop_ids = np.asarray(sorted(engine.stop_ids), dtype=np.int64)
        self._stop_text: dict[int, StopText] = {}

    def run(self) -> Iterator[Completion]:
        """Completions in the order in which requests finish."""
        while True:
            preempted = self._reserve_running()
            self._fill_slots()
            if not preempted:
                self._prefill_waiting()
            running = self.slots.of_status(RUNNING)
            if running.size:
                self._round(running)
            while self._done:
                yield self._done.popleft()
            if not self._source_open and not (self.slots.status != FREE).any():
                return

    def _reserve_running(self) -> bool:
        """Reserve pages for the anchor and a block of every running request; the youngest make room if none are left.

        Decided before this round's block exists: dropping a request on evidence from the drafted tokens would bias
        its text.
        """
        running = self.slots.of_status(RUNNING)
        missing = self.pool.missing(running, self.slots.context_len[running] + 1 + self.gamma)
        kept, needed = len(running), int(missing.sum())
        while needed > self.pool.num_free:
            kept -= 1
            needed -= int(missing[kept])
            youngest = int(running[kept])
            self.pool.release(youngest)
            self.slots.preempt(youngest)
            self.stats.preemptions += 1
        self.pool.grow(running[:kept], missing[:kept])
        return kept < len(running)

    def _fill_slots(self) -> None:
        """Pull requests from the source into free slots; what can never run completes as an error."""
        for slot in np.flatnonzero(self.slots.status == FREE):
            while self._source_open:
                request = next(self._source, _EXHAUSTED)
                if request is _EXHAUSTED:
                    self._source_open = False
                    break
                if not isinstance(request, Request):
                    raise EngineError(
                        f"generate() got a {type(request).__name__}", "Give it an iterable of dspark.engine.Request."
                    )
                try:
                    self.engine.check(request)
                except RequestError as error:
                    self._done.append(Completion.failed(request.index, f"{error}. {error.remedy}"))
                    continue
                self.slots.arrive(int(slot), request, seed=self._seed(request))
                self.counts.clear(int(slot))
                if request.sampling.stop:
                    self._stop_text[int(slot)] = self.engine.stop_text(request.sampling.stop)
                break

    def _seed(self, request: Request) -> int:
        seed = request.sampling.seed
        return row_seed(self.engine.config.seed, request.index) if seed is None else fold_seed(seed)

    def _prefill_waiting(self) -> None:
        """Compute the context of waiting requests, oldest first, as far as pages reach, in packed chunks."""
        admitted: list[int] = []
        running = int((self.slots.status == RUNNING).sum())
        for slot in self.slots.of_status(WAITING):
            one = np.asarray([slot])
            missing = self.pool.missing(one, self.slots.context_len[one] + 1 + self.gamma)
            # A page is left for each of the others, which would otherwise preempt it in the very next round.
            others = running + len(admitted)
            if int(missing[0]) + others > self.pool.num_free:
                break
            self.pool.grow(one, missing)
            admitted.append(int(slot))
        for rows, starts, counts in self._chunks(admitted):
            ends = starts + counts
            fresh = (ends == self.slots.context_len[rows]) & (self.slots.emitted[rows] == 0)
            tokens = self._runner.prefill(rows, starts, counts, fresh)
            self.stats.prefill_tokens += int(counts.sum())
            if tokens.size:
                self._start(rows[fresh], tokens)
        for slot in admitted:
            if self.slots.status[slot] == WAITING:
                self.slots.status[slot] = RUNNING

    def _chunks(self, admitted: list[int]) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
        """Cut the contexts of `admitted` slots into packed chunks: (slots [R], starts [R], counts [R])."""
        budget = self.engine.prefill_chunk_tokens
        chunk: list[tuple[int, int, int]] = []
        room = budget
        for slot in admitted:
            start, end = 0, int(self.slots.context_len[slot])
            while start < end:
                count = min(room, end - start)
                chunk.append((slot, start, count))
                start, room = start + count, room - count
                if room == 0:
                    yield _columns(chunk)
                    chunk, room = [], budget
        if chunk:
            yield _columns(chunk)

    def _start(self, rows: np.ndarray, tokens: np.ndarray) -> None:
        """Give slots `rows` [R] the token behind their prompt: the first anchor."""
        ones = np.ones(len(rows), dtype=np.int64)
        self._retire(rows, self._append(rows, self.slots.context_len[rows], tokens[:, None], ones))

    def _round(self, rows: np.ndarray) -> None:
        """Draft, schedule, verify and commit for the running requests in slots `rows` [R]."""
        tokens_left = self.slots.limit[rows] - self.slots.emitted[rows]
        draft = self._draft(rows, tokens_left)
        lengths = self._schedule(rows, draft, tokens_left)
        self._commit(rows, lengths, self._runner.verify(rows, lengths, draft))

    def _draft(self, rows: np.ndarray, tokens_left: np.ndarray) -> DraftOutput | None:
        """Draft one block a request, unless the policy drafts nothing or nobody could use a draft."""
        policy = self.engine.policy
        if self.engine.drafter is None or not policy.drafts or int(tokens_left.max()) <= 1:
            return None
        steps = policy.steps(self.gamma)
        self.slots.generation[rows] += 1
        # A request that takes one more token has no use for its draft, whoever else makes the block worth drafting.
        self.counts.add_drafts(rows[tokens_left > 1], steps)
        return self._runner.draft(rows, steps)

    def _schedule(self, rows: np.ndarray, draft: DraftOutput | None, tokens_left: np.ndarray) -> np.ndarray:
        """How many drafted tokens of each request the target verifies: int64 [R]."""
        if draft is None:
            return np.zeros(len(rows), dtype=np.int64)
        steps = draft.tokens.shape[1]
        caps = np.minimum(steps, tokens_left - 1)
        if not self.engine.policy.reads_confidence:
            # Nothing of the block is needed on the host yet, so the device need not be waited for.
            nothing = np.zeros((len(rows), 0), dtype=np.float32)
            view = ScheduleView(caps=caps, confidence_logits=nothing, temperatures=np.zeros(0))
            return self._capped(view)
        confidence = draft.confidence_logits.float().cpu().numpy()  # [R, steps]
        view = ScheduleView(
            caps=caps,
            confidence_logits=confidence,
            previous_confidence_logits=self.slots.previous_confidence[rows, :steps],
            previous_valid=self.slots.has_previous[rows],
            temperatures=self.engine.confidence_temperatures[:steps],
        )
        lengths = self._capped(view)
        self.slots.previous_confidence[rows, :steps] = confidence
        self.slots.has_previous[rows] = True
        return lengths

    def _capped(self, view: ScheduleView) -> np.ndarray:
        # Whatever a policy wants: past its cap a request has neither pages nor tokens left.
        return np.clip(self.engine.policy.lengths(view), 0, view.caps)

    def _commit(self, rows: np.ndarray, lengths: np.ndarray, result: RoundTokens) -> None:
        """Append what verification gives, count it, and let finished requests leave."""
        slots, accepted = self.slots, result.accepted
        kept = self._append(rows, slots.context_len[rows] + 1, result.block, accepted + 1)
        slots.context_len[rows] += kept.tokens
        # A stop inside the accepted tokens ends the round there; what lies behind it was never observed.
        stopped_early = kept.tokens <= accepted
        accepted = np.where(stopped_early, kept.tokens, accepted)
        observed = np.where(stopped_early, accepted, np.minimum(accepted + 1, lengths))
        self.stats.rounds += 1
        self.stats.emitted += int(kept.tokens.sum())
        self.counts.add_round(rows, verified=lengths, observed=observed, accepted=accepted, emitted=kept.tokens)
        self._retire(rows, kept)

    def _append(self, rows: np.ndarray, first: np.ndarray, block: np.ndarray, counts: np.ndarray) -> Kept:
        """Write `counts` [R] tokens of `block` [R, n] at text positions `first` [R], up to a stop."""
        kept, stopped = cut_at_stop_ids(block, counts, self._stop_ids, ignore=self.slots.ignore_eos[rows])
        for i, slot in enumerate(rows.tolist() if self._stop_text else ()):
            watcher = self._stop_text.get(slot)
            cut = watcher.feed(block[i, : kept[i]].tolist()) if watcher is not None else None
            if cut is not None:
                kept[i], stopped[i] = cut, True
        column = np.arange(block.shape[1])
        written = column < kept[:, None]
        owner, offset = np.nonzero(written)
        self.slots.tokens[rows[owner], first[owner] + offset] = block[written]
        self.slots.emitted[rows] += kept
        return Kept(tokens=kept, stopped=stopped)

    def _retire(self, rows: np.ndarray, kept: Kept) -> None:
        """Complete the requests that stopped or reached their limit."""
        finished = kept.stopped | (self.slots.emitted[rows] >= self.slots.limit[rows])
        for slot, stopped in zip(rows[finished].tolist(), kept.stopped[finished].tolist(), strict=True):
            request = self.slots.requests[slot]
            assert request is not None
            watcher = self._stop_text.pop(slot, None)
            stopped_by_text = watcher is not None and watcher.finish()
            counts = self.counts.of(slot)
            self.stats.spec += counts
            self._done.append(
                Completion(
                    index=request.index,
                    token_ids=self.slots.completion(slot).tolist(),
                    text=watcher.text if watcher is not None and stopped_by_text else None,
                    finish_reason="stop" if stopped or stopped_by_text else "length",
                    error=None,
                    counts=counts,
                )
            )
            self.pool.release(slot)
            self.slots.leave(slot)


def _columns(chunk: list[tuple[int, int, int]]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    slots, starts, counts = np.asarray(chunk, dtype=np.int64).T
    return slots, starts, counts
