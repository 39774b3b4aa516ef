"""What the driver and its workers know together, so that it outlives any worker."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

from dspark.engine.errors import EngineError

# A row is decoded once and, where its worker dies, at most twice more: the last time with no other row beside it.
MOST_ATTEMPTS = 3
# A worker that dies while it loads is started anew as often, for each worker; then it is no accident.
_MOST_LOADS = 3
_DONE = b""


@dataclass(frozen=True, slots=True)
class Facts:
    """What a worker says of its engine once it is loaded."""

    fingerprint: dict[str, Any]
    gamma: int
    stop_ids: frozenset[int]
    max_context: int
    notes: tuple[str, ...]
    manifest: dict[str, Any]
    process_id: int


@dataclass(frozen=True, slots=True)
class State:
    """Where a run stands: the workers loaded so far, those started anew included, and what ends it."""

    workers: tuple[Facts, ...] = ()
    failure: Exception | None = None


class Ledger:
    """Blocks of rows by number, and how often each was begun. One thread's: an actor of Ray runs it."""

    def __init__(self, num_workers: int) -> None:
        self._num_workers = num_workers
        self._blocks: dict[int, bytes] = {}
        self._attempts: dict[int, int] = {}
        self._alone: set[int] = set()
        self._loads = 0
        self._facts: list[Facts] = []
        self._failure: Exception | None = None
        self._closed = False
        self._changed = asyncio.Condition()

    async def put(self, number: int, block: bytes) -> None:
        """One more block to decode."""
        async with self._changed:
            self._blocks[number] = block
            self._changed.notify_all()

    async def block(self, number: int) -> bytes | None:
        """Wait for a block: empty if it was decoded meanwhile, None once there will be no more."""
        async with self._changed:
            await self._changed.wait_for(lambda: self._closed or number in self._blocks)
            return self._blocks.get(number)

    async def finished(self, number: int, indices: list[int]) -> None:
        """The rows of a block are decoded. Its number stays taken: who reads blocks may begin again from the first."""
        self._blocks[number] = _DONE
        self._attempts.pop(number, None)
        self._alone.difference_update(indices)

    async def close(self) -> None:
        """No more blocks come."""
        async with self._changed:
            self._closed = True
            self._changed.notify_all()

    async def begin(self, number: int) -> bool:
        """A worker begins a block; whether its rows are to be decoded one by one, since all together have failed."""
        self._attempts[number] = self._attempts.get(number, 0) + 1
        return self._attempts[number] >= MOST_ATTEMPTS

    async def may_try_alone(self, index: int) -> bool:
        """A worker is about to decode a row with none beside it; False if that has ended a worker before."""
        if index in self._alone:
            return False
        self._alone.add(index)
        return True

    async def came_through(self, index: int) -> None:
        """A row was decoded with none beside it. Its answer may still be lost, with a worker that the next row ends."""
        self._alone.discard(index)

    async def loading(self) -> None:
        """A worker begins to load the models."""
        self._loads += 1
        if self._loads - len(self._facts) > self._num_workers * (1 + _MOST_LOADS):
            self._fail(
                EngineError(
                    "workers die while they load the models",
                    "See whether their memory is enough: `dmesg` tells of processes that were killed for it.",
                )
            )

    async def loaded(self, facts: Facts) -> None:
        """A worker is ready."""
        self._facts.append(facts)
        if facts.fingerprint != self._facts[0].fingerprint:
            self._fail(
                EngineError(
                    "the workers do not decode alike: their models, devices or number formats differ",
                    "Name --device and --dtype, and give every machine the same model files.",
                )
            )

    async def failed(self, error: Exception) -> None:
        """A worker cannot load."""
        self._fail(error)

    async def state(self) -> State:
        """What is known by now."""
        return State(tuple(self._facts), self._failure)

    def _fail(self, error: Exception) -> None:
        if self._failure is None:
            self._failure = error
