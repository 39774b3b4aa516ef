"""A worker: an engine, and what Ray Data calls to have a block of rows decoded by it."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dspark.engine.cluster.ledger import Facts
from dspark.engine.cluster.row_server import Answer, RowServer
from dspark.engine.errors import DsparkError, EngineError
from dspark.engine.requests import Request
from dspark.engine.wording import first_line

if TYPE_CHECKING:
    import pyarrow as pa

    from dspark.engine.config import EngineConfig
    from dspark.engine.engine import Engine

Load = Callable[["EngineConfig", int | None], "Engine"]

COLUMN = "block"
_GIVEN_UP = 70


@dataclass(frozen=True, slots=True)
class Asked:
    """Rows on their way to a worker."""

    number: int
    requests: Sequence[Request]
    record_rounds: bool


@dataclass(frozen=True, slots=True)
class Answered:
    """Rows on their way back."""

    number: int
    answers: Sequence[Answer]


class Worker:
    """Loads an engine, and decodes blocks on it from as many threads as call.

    Args:
        config: of the engine, with names that this machine can resolve.
        ledger: the handle of the run's `Ledger`.
        threads: processors to compute with; None: as many as torch takes.
        load: makes the engine.
    """

    def __init__(self, config: EngineConfig, ledger: Any, threads: int | None, load: Load) -> None:
        self._ledger = ledger
        self._ask(ledger.loading.remote())
        try:
            engine = load(config, threads)
            facts = _facts(engine)
        except Exception as error:
            self._ask(ledger.failed.remote(_portable(error)))
            raise
        self._server = RowServer(
            engine,
            may_try_alone=lambda index: bool(self._ask(ledger.may_try_alone.remote(index))),
            came_through=lambda index: self._ask(ledger.came_through.remote(index)),
            check_device=lambda: _check(engine),
            give_up=lambda: os._exit(_GIVEN_UP),
        )
        self._ask(ledger.loaded.remote(facts))

    def __call__(self, batch: pa.Table) -> pa.Table:
        """Blocks in, blocks out: one row each, which holds an `Asked` and an `Answered`."""
        return block_table([self._answered(content.as_py()) for content in batch[COLUMN]])

    def _answered(self, content: bytes) -> bytes:
        if not content:
            # Decoded by an earlier worker, whose answer has arrived.
            return content
        asked: Asked = pickle.loads(content)
        alone = bool(self._ask(self._ledger.begin.remote(asked.number)))
        answers = self._server.answers(asked.requests, record_rounds=asked.record_rounds, alone=alone)
        return pickle.dumps(Answered(asked.number, answers))

    @staticmethod
    def _ask(reference: Any) -> Any:
        import ray

        return ray.get(reference)


def block_table(blocks: Sequence[bytes]) -> pa.Table:
    """Blocks as Ray Data carries them."""
    import pyarrow as pa

    return pa.table({COLUMN: pa.array(blocks, type=pa.large_binary())})


def load_engine(config: EngineConfig, threads: int | None) -> Engine:
    """The engine of a configuration, which computes with `threads` processors."""
    import torch

    from dspark.engine.engine import Engine
    from dspark.engine.jobs.tokenizer import Tokenizer
    from dspark.engine.models.resolve import resolve_target

    if threads is not None:
        torch.set_num_threads(threads)
    tokenizer = None if config.load_format == "dummy" else Tokenizer.load(resolve_target(config.target))
    return Engine(config, detokenizer=tokenizer)


def _facts(engine: Engine) -> Facts:
    from dspark.engine.jobs.manifest import manifest

    return Facts(
        fingerprint=dict(engine.fingerprint()),
        gamma=engine.gamma,
        stop_ids=engine.stop_ids,
        max_context=engine.max_context,
        notes=tuple(engine.notes),
        manifest=dict(manifest(engine.device.type)),
        process_id=os.getpid(),
    )


def _check(engine: Engine) -> None:
    """Raises if a fault has left a GPU unusable for this process."""
    if engine.device.type == "cuda":
        import torch

        torch.cuda.synchronize()


def _portable(error: Exception) -> Exception:
    """An error that every process can read: one of ours as it is, of any other its first line."""
    if isinstance(error, DsparkError) or hasattr(error, "remedy"):
        return error
    return EngineError(
        f"a worker could not load the models: {type(error).__name__}: {first_line(error)}",
        "Try the same without --num-workers and --ray; if that works, the workers' machines differ from this one.",
    )
