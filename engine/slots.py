"""What the host knows about each request being decoded: one row a request slot."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from dspark.engine.requests import Request
from dspark.engine.scheduler.history import SurvivalHistory

if TYPE_CHECKING:
    from dspark.engine.sampling import Sampling

FREE, WAITING, RUNNING = 0, 1, 2


class SlotTable:
    """Request state in arrays over the slots, so that a round over thousands of requests costs a few numpy calls.

    A slot is FREE, WAITING (its context must be computed: a new request, or one that lost its pages) or RUNNING. Text
    position `context_len` holds the anchor: the newest token, whose key and value are not yet in the cache; every
    position below it is committed and cached while the slot is RUNNING.

    `status` is written by `set_status` alone.

    The device may be ahead: of the rounds in flight, whose results are still to come, only bounds are known.
    """

    def __init__(self, num_slots: int, *, max_context: int, gamma: int) -> None:
        self.status = np.zeros(num_slots, dtype=np.int8)  # [S]
        self.requests: list[Request | None] = [None] * num_slots
        self.request_index = np.zeros(num_slots, dtype=np.int64)
        self.serial = np.zeros(num_slots, dtype=np.int64)  # order of arrival
        self.tokens = np.zeros((num_slots, max_context + 1), dtype=np.int32)  # prompt and completion
        self.prompt_len = np.zeros(num_slots, dtype=np.int64)
        self.context_len = np.zeros(num_slots, dtype=np.int64)
        self.emitted = np.zeros(num_slots, dtype=np.int64)
        self.limit = np.zeros(num_slots, dtype=np.int64)  # completion tokens at most
        self.temperature = np.zeros(num_slots, dtype=np.float32)
        self.top_k = np.zeros(num_slots, dtype=np.int64)
        self.top_p = np.ones(num_slots, dtype=np.float32)
        self.seeds = np.zeros(num_slots, dtype=np.int64)
        self.ignore_eos = np.zeros(num_slots, dtype=bool)
        self.in_flight = np.zeros(num_slots, dtype=np.int64)  # results to come, each of one token at least
        self.most_ahead = np.zeros(num_slots, dtype=np.int64)  # text positions that they move the anchor by, at most
        self.generation = np.zeros(num_slots, dtype=np.int64)  # blocks drafted so far
        self.history = SurvivalHistory(num_slots, gamma)
        self._max_context = max_context
        self._arrivals = 0
        # Of the rows asked about last, an array that `of_status` gave: how they are sampled.
        self.sampling: tuple[np.ndarray, Sampling] | None = None
        # By status; requests change theirs in few rounds.
        self._of_status: dict[int, np.ndarray] = {}

    def of_status(self, status: int) -> np.ndarray:
        """Slots in `status`, in the order their requests arrived: the same array until some slot's status changes."""
        found = self._of_status.get(status)
        if found is None:
            slots = np.flatnonzero(self.status == status)
            found = slots[np.argsort(self.serial[slots], kind="stable")]
            self._of_status[status] = found
        return found

    def set_status(self, slots: np.ndarray | int, status: int) -> None:
        """Put slots into `status`."""
        self.status[slots] = status
        self._of_status.clear()

    def arrive(self, slot: int, request: Request, *, seed: int) -> None:
        """Put a new request into a FREE slot; it waits for its prefill."""
        prompt: Sequence[int] = request.prompt_token_ids
        sampling = request.sampling
        length = len(prompt)
        self.requests[slot] = request
        self.request_index[slot] = request.index
        self.tokens[slot, :length] = prompt
        self.prompt_len[slot] = self.context_len[slot] = length
        self.emitted[slot] = 0
        self.limit[slot] = min(sampling.max_tokens, self._max_context - length)
        self.temperature[slot] = sampling.temperature
        self.top_k[slot] = sampling.top_k
        self.top_p[slot] = sampling.top_p
        self.seeds[slot] = seed
        self.ignore_eos[slot] = sampling.ignore_eos
        self.in_flight[slot] = self.most_ahead[slot] = 0
        self.generation[slot] = 0
        self._forget(slot)
        self.serial[slot] = self._arrivals
        self._arrivals += 1
        self.set_status(slot, WAITING)

    def preempt(self, slot: int) -> None:
        """Make a RUNNING request wait for its context again; its text, anchor and counts stay, its history does not."""
        self.set_status(slot, WAITING)
        self._forget(slot)

    def leave(self, slot: int) -> None:
        """Free the slot."""
        self._forget(slot)
        self.requests[slot] = None
        self.set_status(slot, FREE)

    def most_start(self, rows: np.ndarray) -> np.ndarray:
        """Text position [R] that the anchors of slots `rows` [R] do not pass, whatever the rounds in flight give."""
        last = self.prompt_len[rows] + self.limit[rows] - 1
        return np.minimum(self.context_len[rows] + self.most_ahead[rows], last)

    def most_left(self, rows: np.ndarray) -> np.ndarray:
        """Tokens [R] that the requests in slots `rows` [R] may still get behind the rounds in flight, at most."""
        return self.limit[rows] - self.emitted[rows] - self.in_flight[rows]

    def wanting(self) -> np.ndarray:
        """RUNNING slots that may take more tokens than the rounds in flight give, in the order their requests arrived.

        Usually all: the array is then that of `of_status`, which tells others that these are the same requests.
        """
        running = self.of_status(RUNNING)
        wants = self.most_left(running) > 0
        return running if wants.all() else running[wants]

    def launch(self, rows: np.ndarray, most_ahead: np.ndarray | int) -> None:
        """A result of slots `rows` [R] is under way that moves their anchors by at most so many positions."""
        self.in_flight[rows] += 1
        self.most_ahead[rows] += most_ahead

    def land(self, rows: np.ndarray, most_ahead: np.ndarray | int) -> None:
        """The oldest result of slots `rows` [R] has come."""
        self.in_flight[rows] -= 1
        self.most_ahead[rows] -= most_ahead

    def completion(self, slot: int) -> np.ndarray:
        """Tokens emitted so far."""
        start = self.prompt_len[slot]
        return self.tokens[slot, start : start + self.emitted[slot]]

    def _forget(self, slot: int) -> None:
        """What earlier blocks looked like says nothing of the request that comes, or comes again."""
        self.history.reset(np.asarray([slot]))
