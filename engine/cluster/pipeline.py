"""The Ray Data pipeline of a run: blocks of rows from the driver to a fixed pool of workers and back, as they come."""

from __future__ import annotations

import pickle
import queue
import threading
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from dspark.engine.cluster.ledger import Facts, Ledger, State
from dspark.engine.cluster.ray_session import RaySession
from dspark.engine.cluster.worker import COLUMN, Answered, Asked, Load, Worker, block_table
from dspark.engine.cluster.workers import Share
from dspark.engine.errors import EngineError
from dspark.engine.wording import first_line

if TYPE_CHECKING:
    import pyarrow as pa

    from dspark.engine.config import EngineConfig

_POLL_S = 1.0
_CLOSE_S = 3.0


class Pipeline:
    """Workers that load once and stay until `close`.

    Ray Data has no source without end, so its first stage is one task that hands on the blocks it finds in the
    ledger, by number; if its process is lost, it reads them again from the first. A worker that dies is replaced by
    Ray, which calls it again with the blocks that it had; the ledger knows how often that happened.

    Args:
        calls: blocks that a worker has at once.
        load: makes a worker's engine.
    """

    def __init__(self, session: RaySession, config: EngineConfig, share: Share, *, calls: int, load: Load) -> None:
        self._ledger = session.actor(Ledger, share.num_workers)
        self._results: queue.SimpleQueue[Answered | Exception] = queue.SimpleQueue()
        dataset = _dataset(self._ledger, config, share, calls, load)
        self._collector = threading.Thread(target=self._collect, args=(dataset,), daemon=True)
        self._collector.start()

    def wait_for_worker(self) -> Facts:
        """What the first worker says of itself once it is loaded.

        Raises:
            DsparkError, CalibrationError, ProfileError: it cannot be loaded.
        """
        while True:
            state = self._state()
            if state.workers:
                return state.workers[0]
            try:
                self._raise(self._results.get(timeout=_POLL_S / 4))
            except queue.Empty:
                continue

    def workers(self) -> Sequence[Facts]:
        """All that were loaded so far, those that took over from others included."""
        return self._state().workers

    def put(self, asked: Asked) -> None:
        """Give the workers a block.

        Raises:
            EngineError: the workers are of no more use.
        """
        self._told(self._ledger.put.remote(asked.number, pickle.dumps(asked)))

    def next(self) -> list[Answered]:
        """Wait for a block that is done; all that are.

        Raises:
            EngineError: the workers are of no more use.
        """
        answered: list[Answered] = []
        while not answered or not self._results.empty():
            try:
                result = self._results.get(timeout=_POLL_S)
            except queue.Empty:
                self._state()
                continue
            if answered and isinstance(result, Exception):
                # Nothing comes behind it, and what is decoded must not be lost with it.
                self._results.put(result)
                break
            answered.append(self._raise(result))
        return answered

    def finished(self, number: int, indices: Sequence[int]) -> None:
        """A block has arrived, and need not be known any more."""
        self._ledger.finished.remote(number, list(indices))

    def close(self) -> None:
        """No more blocks come. Ray Data is given a moment to end by itself, which takes it longer in mid-work."""
        with suppress(EngineError):
            self._told(self._ledger.close.remote())
        self._collector.join(_CLOSE_S)

    def _state(self) -> State:
        state: State = self._told(self._ledger.state.remote())
        if state.failure is not None:
            raise state.failure
        return state

    def _raise(self, result: Answered | Exception) -> Answered:
        if isinstance(result, Exception):
            # What a worker says itself is worth more than what Ray makes of it.
            self._state()
            raise _ended(result) from result
        return result

    @staticmethod
    def _told(reference: Any) -> Any:
        """What the ledger answers."""
        from ray.exceptions import RayError

        try:
            return _wait(reference)
        except RayError as error:
            raise _ended(error) from error

    def _collect(self, dataset: Any) -> None:
        try:
            for batch in dataset.iter_batches(batch_size=None, batch_format="pyarrow", prefetch_batches=0):
                for content in batch[COLUMN]:
                    if content.as_py():
                        self._results.put(pickle.loads(content.as_py()))
            self._results.put(EngineError("there are no more blocks"))
        except (Exception, SystemExit) as error:
            # Ray ends threads that wait for it by SystemExit once it is shut down.
            self._results.put(error if isinstance(error, Exception) else EngineError("the Ray session was shut down"))


def _ended(error: Exception) -> EngineError:
    return EngineError(
        f"the workers ended: {type(error).__name__}: {first_line(error)}",
        "See whether Ray's cluster is well (`ray status`); --resume goes on with what is missing.",
    )


def _dataset(ledger: Any, config: EngineConfig, share: Share, calls: int, load: Load) -> Any:
    from ray.data import ActorPoolStrategy, from_items

    pool = ActorPoolStrategy(
        size=share.num_workers,
        max_tasks_in_flight_per_actor=calls,
        max_concurrent_calls_per_actor=calls,
        enable_true_multi_threading=True,
    )
    return (
        from_items([{COLUMN: 0}])
        # Takes no processor: one that waits would keep a worker from starting.
        .map_batches(_blocks, batch_size=None, fn_kwargs={"ledger": ledger}, num_cpus=0)
        .map_batches(
            Worker,
            batch_size=None,
            batch_format="pyarrow",
            fn_constructor_kwargs={
                "config": config,
                "ledger": ledger,
                "load": load,
                "threads": None if share.gpus else max(int(share.cpus), 1),
            },
            compute=pool,
            num_gpus=share.gpus,
            num_cpus=share.cpus,
        )
    )


def _blocks(batch: Any, ledger: Any) -> Iterator[pa.Table]:
    """All blocks of the ledger, one by one as they come."""
    number = 0
    while (block := _wait(ledger.block.remote(number))) is not None:
        yield block_table([block])
        number += 1


def _wait(reference: Any) -> Any:
    import ray

    return ray.get(reference)
