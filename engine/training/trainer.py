"""The training loop: steps, readings, evaluations and saves, until steps or time are used up."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import Any, Protocol

import torch

from dspark.engine.errors import EngineError
from dspark.engine.training.acceptance import Acceptance
from dspark.engine.training.batches import Batches, HostBatch
from dspark.engine.training.checkpoint import RunFolder, RunState
from dspark.engine.training.draft_model import DraftModel
from dspark.engine.training.evaluate import evaluate
from dspark.engine.training.schedule import RunClock, learning_rate
from dspark.engine.training.settings import TrainSettings
from dspark.engine.training.step import DistillationStep, StepLoss

# The device is waited for this often at most, to show how it goes.
_READING_EVERY_S = 1.0
_BETAS = (0.9, 0.95)


@dataclass(frozen=True, slots=True)
class Reading:
    """What the last steps gave, for people to look at."""

    step: int
    progress: float
    left_s: float | None
    loss: float
    acceptance: tuple[float, ...]  # mean 1 - TV of each slot
    learning_rate: float
    positions_per_s: float


class TrainReporter(Protocol):
    """Is told how training goes."""

    def trained(self, reading: Reading) -> None:
        """Some more steps are done."""

    def evaluated(self, acceptance: Acceptance, *, is_best: bool) -> None:
        """The held-out texts were measured."""


def make_optimizer(model: DraftModel, settings: TrainSettings) -> torch.optim.AdamW:
    """AdamW over fp32 weights; norms, biases and the Markov tables do not decay."""
    decayed: list[torch.nn.Parameter] = []
    kept: list[torch.nn.Parameter] = []
    for name, parameter in model.named_parameters():
        is_matrix = parameter.ndim == 2 and "markov_w" not in name and "confidence" not in name
        (decayed if is_matrix else kept).append(parameter)
    groups = [{"params": decayed, "weight_decay": settings.weight_decay}, {"params": kept, "weight_decay": 0.0}]
    fused = next(model.parameters()).is_cuda
    return torch.optim.AdamW(groups, lr=settings.learning_rate, betas=_BETAS, fused=fused)


class Trainer:
    """Trains one drafter in one folder.

    Args:
        held_out: makes the batches that are measured on.
        identity: what the run depends on; a state of another one is not taken up.
        card: the model card's text for a state of the run.
    """

    def __init__(
        self,
        step: DistillationStep,
        batches: Batches,
        held_out: Batches,
        folder: RunFolder,
        *,
        identity: Mapping[str, Any],
        card: Callable[[RunState], str],
        reporter: TrainReporter,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._step, self._batches, self._held_out = step, batches, held_out
        self._folder, self._identity, self._card, self._reporter = folder, identity, card, reporter
        self._settings: TrainSettings = step.settings
        self._model = step.model
        self._optimizer = make_optimizer(self._model, self._settings)
        self._clock = clock
        self.state = RunState()
        self._meter = _Meter(self._model.config.block_size, next(self._model.parameters()).device)

    def resume(self) -> None:
        """Take up what the folder holds, if it has come to training yet.

        Raises:
            UsageError: it is of another run.
        """
        state = self._folder.load_state(self._model, self._optimizer, identity=self._identity)
        if state is not None:
            self.state = state

    def run(self) -> RunState:
        """Train to the end.

        Raises:
            EngineError: the loss is no number any more; the best drafter so far stays on disk.
            KeyboardInterrupt: asked to stop; state and best drafter are on disk.
        """
        state = self.state
        if state.finished:
            return state
        clock = RunClock(self._settings, before_s=state.elapsed_s, clock=self._clock)
        # Of this process: an earlier one may have ended between two of them.
        evaluated_s = saved_s = read_s = clock.elapsed_s
        with _stop_requests() as stop, _Ahead(self._batches, state.step) as ahead:
            while clock.progress(state.step) < 1:
                rate = learning_rate(self._settings, clock.progress(state.step))
                host = next(ahead)
                self._take_step(host, rate)
                state.step += 1
                state.positions += len(host.slots)
                state.elapsed_s = now = clock.elapsed_s
                if now - read_s >= _READING_EVERY_S:
                    read_s = now
                    self._read(clock, rate)
                if stop.is_set():
                    self._read(clock, rate)
                    self._interrupted()
                every = self._settings.evaluate_every_steps
                if state.step % every == 0 if every else now - evaluated_s >= self._settings.evaluate_every:
                    self._read(clock, rate)
                    self._evaluate()
                    evaluated_s = clock.elapsed_s
                if clock.elapsed_s - saved_s >= self._settings.save_every:
                    self._read(clock, rate)
                    state.elapsed_s = clock.elapsed_s
                    self._save()
                    saved_s = clock.elapsed_s
            self._read(clock, rate=0.0)
            if not state.history or state.history[-1].step != state.step:
                self._evaluate()
            state.elapsed_s = clock.elapsed_s
        state.finished = True
        self._folder.save_card(self._card(state))
        self._save()
        return state

    def _take_step(self, host: HostBatch, rate: float) -> None:
        for group in self._optimizer.param_groups:
            group["lr"] = rate
        result = self._step(host)
        result.loss.backward()
        torch.nn.utils.clip_grad_norm_(self._model.parameters(), self._settings.max_gradient_norm)
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)
        self._meter.add(host, result)

    def _read(self, clock: RunClock, rate: float) -> None:
        """Look at what the steps since the last look gave."""
        if not self._meter.steps:
            return
        loss, acceptance, positions_per_s = self._meter.take(self._clock())
        if loss != loss or abs(loss) == float("inf"):
            kept = "The best drafter so far is on disk" if self._folder.has_drafter else "Nothing was saved yet"
            raise EngineError(
                f"the loss is {loss} at step {self.state.step}, so this run has diverged",
                f"{kept}. Start again with a lower --learning-rate.",
            )
        state = self.state
        progress, left_s = clock.progress(state.step), clock.left_s(state.step)
        self._reporter.trained(Reading(state.step, progress, left_s, loss, acceptance, rate, positions_per_s))

    def _evaluate(self) -> None:
        state = self.state
        acceptance = evaluate(self._step, self._held_out.once(), at_step=state.step)
        state.history.append(acceptance)
        is_best = state.best is None or acceptance.score > state.best.score
        if is_best:
            state.best = acceptance
            self._folder.save_drafter(self._model, num_anchors=self._settings.anchors)
            self._folder.save_card(self._card(state))
        self._reporter.evaluated(acceptance, is_best=is_best)

    def _save(self) -> None:
        self._folder.save_state(self.state, self._model, self._optimizer, identity=self._identity)

    def _interrupted(self) -> None:
        if not self.state.history:
            self._evaluate()
        self._save()
        raise KeyboardInterrupt


class _Meter:
    """Sums over steps, kept on the device until somebody looks."""

    def __init__(self, block_size: int, device: torch.device) -> None:
        self._sums = torch.zeros(1 + 2 * block_size, device=device)
        self._block_size = block_size
        self._started_s: float | None = None
        self._positions = 0
        self.steps = 0

    def add(self, host: HostBatch, result: StepLoss) -> None:
        size = self._block_size
        place = result.slots % size
        rates = 1 - result.rows.distance / 2
        self._sums[0] += result.loss.detach()
        self._sums[1 : 1 + size].index_add_(0, place, rates)
        self._sums[1 + size :].index_add_(0, place, torch.ones_like(rates))
        self.steps += 1
        self._positions += len(host.slots)

    def take(self, now_s: float) -> tuple[float, tuple[float, ...], float]:
        """Mean loss, mean acceptance of each slot, and positions a second since the last time."""
        sums = self._sums.tolist()
        rates, counts = sums[1 : 1 + self._block_size], sums[1 + self._block_size :]
        acceptance = tuple(rate / max(count, 1) for rate, count in zip(rates, counts, strict=True))
        speed = 0.0 if self._started_s is None else self._positions / max(now_s - self._started_s, 1e-9)
        loss = sums[0] / self.steps
        self._sums.zero_()
        self._started_s, self._positions, self.steps = now_s, 0, 0
        return loss, acceptance, speed


class _Ahead:
    """Builds the next batches while the device is busy with the present one."""

    _DEPTH = 2

    def __init__(self, batches: Batches, first: int) -> None:
        self._batches = batches
        self._pool = ThreadPoolExecutor(1)
        self._next = first
        self._futures = [self._submit() for _ in range(self._DEPTH)]

    def __enter__(self) -> _Ahead:
        return self

    def __exit__(self, *error: object) -> None:
        self._pool.shutdown(cancel_futures=True)

    def __next__(self) -> HostBatch:
        self._futures.append(self._submit())
        return self._futures.pop(0).result()

    def _submit(self) -> Any:
        index, self._next = self._next, self._next + 1
        return self._pool.submit(self._batches.batch, index)


@contextmanager
def _stop_requests() -> Iterator[threading.Event]:
    """Set by the first Ctrl-C or termination, which then waits for the end of a step; a second one does not wait."""
    stop = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield stop
        return

    def handle(number: int, frame: FrameType | None) -> None:
        if stop.is_set():
            raise KeyboardInterrupt
        stop.set()

    before = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
