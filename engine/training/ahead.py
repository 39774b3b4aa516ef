"""Batches that are built while the device is busy."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor

from dspark.engine.training.batches import Batches, HostBatch


class Ahead:
    """Builds the next batches while the device is busy with the present one."""

    _DEPTH = 2

    def __init__(self, batches: Batches, first: int) -> None:
        self._batches = batches
        self._pool = ThreadPoolExecutor(1)
        self._next = first
        self._futures = [self._submit() for _ in range(self._DEPTH)]

    def __enter__(self) -> Ahead:
        return self

    def __exit__(self, *error: object) -> None:
        self._pool.shutdown(cancel_futures=True)

    def __next__(self) -> HostBatch:
        self._futures.append(self._submit())
        return self._futures.pop(0).result()

    def _submit(self) -> Future[HostBatch]:
        index, self._next = self._next, self._next + 1
        return self._pool.submit(self._batches.batch, index)
