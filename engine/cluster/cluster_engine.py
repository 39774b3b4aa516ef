"""An engine whose requests are decoded by workers: for a job it is like any other."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import chain
from typing import TYPE_CHECKING, Any

from dspark.engine.cluster.pipeline import Pipeline
from dspark.engine.cluster.ray_session import RaySession
from dspark.engine.cluster.worker import Asked, Load, load_engine
from dspark.engine.cluster.workers import Workers, share_of
from dspark.engine.counts import RunStats
from dspark.engine.engine import DEFAULT_CONCURRENCY
from dspark.engine.jobs.round_records import observed_rounds, unpack
from dspark.engine.observation import RoundObserver
from dspark.engine.requests import NOT_YET, Completion, NotYet, Request

if TYPE_CHECKING:
    from dspark.engine.config import EngineConfig
    from dspark.engine.round_meter import RoundListener

# Blocks are as large as lets a worker refill its batch while a quarter to a half of it waits with Ray.
_BLOCKS_A_BATCH = 16
_BATCHES_AHEAD = 2
# So many blocks more are with Ray, for whichever worker is the first to have room.
_BLOCKS_ON_THE_WAY = 2
# Rows that are asked at once go out as so many blocks a worker, as long as none is larger than so many of the usual.
_BLOCKS_AT_ONCE = 4
_LARGEST = 4


@dataclass(frozen=True, slots=True)
class _Window:
    """How much is under way at once."""

    block_rows: int
    calls: int  # blocks that a worker has at once
    open_rows: int


class ClusterEngine:
    """Decodes requests with one engine a worker; the driver keeps their order of arrival, and nothing of the models.

    A worker that dies is replaced and its rows are decoded again, at most twice, the second time one by one; a row
    that ends its worker even then completes with `finish_reason` "error". A row's text depends on its index, its seed
    and the models alone wherever one engine's does, so it is the same however rows are divided.

    Args:
        config: of every worker's engine.
        load: makes such an engine, in the worker's process, from the configuration and a number of processors.

    Raises:
        UsageError: Ray is not installed, the cluster has not what is asked for, or an engine refuses the configuration.
        CheckpointError: a worker cannot load the models.
    """

    def __init__(self, config: EngineConfig, workers: Workers, *, load: Load = load_engine) -> None:
        self._session = RaySession(workers.address)
        try:
            session = self._session
            self.share = share_of(
                workers, device=config.device, gpus=session.gpus, cpus=session.cpus, machines=session.machines
            )
            self._window = _window(config, self.share.num_workers, on_gpus=bool(self.share.gpus))
            # A worker without a share of a GPU may still see one.
            config = replace(config, device="cuda" if self.share.gpus else "cpu")
            self._pipeline = Pipeline(session, config, self.share, calls=self._window.calls, load=load)
            facts = self._pipeline.wait_for_worker()
        except BaseException:
            self._session.close()
            raise
        self.gamma = facts.gamma
        self.stop_ids = facts.stop_ids
        self.max_context = facts.max_context
        self.notes = list(facts.notes)
        self.stats = RunStats()
        self.observer: RoundObserver | None = None
        # Told of nothing: rounds run elsewhere.
        self.round_listener: RoundListener | None = None
        self.times_every_round = False
        self._fingerprint = facts.fingerprint
        self._manifest = facts.manifest
        self._num_blocks = 0
        self._open: dict[int, set[int]] = {}  # block number -> indices of its rows
        self._open_rows = 0

    def fingerprint(self) -> dict[str, Any]:
        """What decides the text besides the requests: the same as of a worker's own engine."""
        return dict(self._fingerprint)

    def manifest(self) -> dict[str, Any]:
        """Under what the workers compute."""
        return {**self._manifest, "workers": self.share.num_workers}

    def process_ids(self) -> list[int]:
        """Of the workers loaded so far, in order; one that took over from another comes later."""
        return [facts.process_id for facts in self._pipeline.workers()]

    def generate(self, requests: Iterable[Request | NotYet]) -> Iterator[Completion]:
        """Decode `requests`; completions come in the order in which they finish.

        Requests are pulled as workers have room for them. With an `observer`, it is told the rounds of a request
        when that is done.

        Raises:
            EngineError: the workers are of no more use.
        """
        self.stats = RunStats()
        source = iter(requests)
        try:
            while True:
                self._ask(source)
                if not self._open:
                    return
                # Of an earlier call, nobody waits for them any more.
                known = [answered for answered in self._pipeline.next() if answered.number in self._open]
                for answered in known:
                    indices = self._open.pop(answered.number)
                    self._open_rows -= len(indices)
                    self._pipeline.finished(answered.number, sorted(indices))
                for answer in chain.from_iterable(answered.answers for answered in known):
                    completion = answer.completion
                    self.stats.emitted += completion.counts.emitted
                    if self.observer is not None and answer.rounds:
                        for observed in observed_rounds(completion.index, unpack(answer.rounds, self.gamma)):
                            self.observer(observed)
                    yield completion
        finally:
            self._open.clear()
            self._open_rows = 0

    def close(self) -> None:
        """End the workers."""
        self._pipeline.close()
        self._session.close()

    def _ask(self, source: Iterator[Request | NotYet]) -> None:
        """Give the workers as much as they have room for."""
        window = self._window
        requests = _pulled(source, window.open_rows - self._open_rows)
        # Ray hands on only some ten blocks a second: where much is asked at once, workers get a few larger ones.
        size = len(requests) // (_BLOCKS_AT_ONCE * self.share.num_workers)
        # The first ones reach every worker, however few rows there are.
        size = min(max(size, window.block_rows if self._open else 1), _LARGEST * window.block_rows)
        for start in range(0, len(requests), size):
            block = requests[start : start + size]
            self._open[self._num_blocks] = {request.index for request in block}
            self._open_rows += len(block)
            self._pipeline.put(Asked(self._num_blocks, block, self.observer is not None))
            self._num_blocks += 1


def _pulled(source: Iterator[Request | NotYet], most: int) -> list[Request]:
    """Up to so many requests: as many as there are now."""
    requests: list[Request] = []
    while len(requests) < most:
        request = next(source, NOT_YET)
        if isinstance(request, NotYet):
            break
        requests.append(request)
    return requests


def _window(config: EngineConfig, num_workers: int, *, on_gpus: bool) -> _Window:
    concurrency = config.concurrency or DEFAULT_CONCURRENCY["cuda" if on_gpus else "cpu"]
    block_rows = max(concurrency // _BLOCKS_A_BATCH, 1)
    calls = int(-(-concurrency * _BATCHES_AHEAD // block_rows))
    return _Window(block_rows, calls, num_workers * (calls + _BLOCKS_ON_THE_WAY) * block_rows)
