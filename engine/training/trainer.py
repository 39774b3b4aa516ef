"""The training loop: steps, readings, evaluations and saves, until steps or time are used up."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from dspark.engine.errors import EngineError
from dspark.engine.training.acceptance import Acceptance
from dspark.engine.training.ahead import Ahead
from dspark.engine.training.batches import Batches, HostBatch
from dspark.engine.training.checkpoint import RunFolder, RunState
from dspark.engine.training.evaluate import evaluate
from dspark.engine.training.meter import Gathered, StepMeter
from dspark.engine.training.optimizer import DraftOptimizer
from dspark.engine.training.pace import Pace
from dspark.engine.training.schedule import RunClock, learning_rate
from dspark.engine.training.settings import TrainSettings
from dspark.engine.training.step import DistillationStep
from dspark.engine.training.stop_requests import stop_requests

# The device is waited for this often at most, to show how it goes.
_READING_EVERY_S = 1.0


@dataclass(frozen=True, slots=True)
class Reading:
    """How far training is, and what the last steps gave."""

    step: int
    progress: float
    left_s: float | None
    learning_rate: float
    gathered: Gathered


class TrainListener(Protocol):
    """Is told how training goes."""

    def trained(self, reading: Reading) -> None:
        """Some more steps are done."""

    def evaluated(self, acceptance: Acceptance, *, is_best: bool) -> None:
        """The held-out texts were measured."""

    def note(self, text: str) -> None:
        """Something to know that stops nothing; may come from another thread."""


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
        reporter: TrainListener,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._step, self._batches, self._held_out = step, batches, held_out
        self._folder, self._identity, self._card, self._reporter = folder, identity, card, reporter
        self._settings: TrainSettings = step.settings
        self._model = step.model
        self._optimizer = DraftOptimizer(self._model, self._settings)
        self._clock = clock
        self.state = RunState()
        device = next(self._model.parameters()).device
        self._meter = StepMeter(self._model.config.block_size, device)
        self._pace = Pace(self._settings, compiles=device.type != "cpu")

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
            EngineError: the loss is no number any more; the drafter on disk stays.
            KeyboardInterrupt: asked to stop; the state is on disk, and a drafter.
        """
        state = self.state
        if state.finished:
            return state
        clock = RunClock(self._settings, before_s=state.elapsed_s, clock=self._clock)
        # Of this process: an earlier one may have ended between two of them.
        evaluated_s = saved_s = read_s = clock.elapsed_s
        with stop_requests(self._acknowledge_stop) as stop, Ahead(self._batches, state.step) as ahead:
            self._meter.begin(self._clock())
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
                if state.step % every == 0 if every else now - evaluated_s >= self._settings.evaluate_every_s:
                    self._read(clock, rate)
                    self._evaluate()
                    evaluated_s = clock.elapsed_s
                if clock.elapsed_s - saved_s >= self._settings.save_every_s:
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
        result = self._step(host)
        result.loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(self._model.parameters(), self._settings.max_gradient_norm)
        self._optimizer.step(rate)
        self._meter.add(host, result, norm)

    def _read(self, clock: RunClock, rate: float) -> None:
        """Look at what the steps since the last look gave."""
        if not self._meter.steps:
            return
        gathered = self._meter.take(self._clock())
        # A gradient without a number has spoilt the weights, whatever the loss before it was.
        for name, value in (("loss", gathered.loss), ("gradient", gathered.gradient_norm)):
            if not math.isfinite(value):
                raise EngineError(
                    f"the {name} is {value} by step {self.state.step}, so this run has diverged",
                    f"{self._folder.best_so_far}. Start again with a lower --learning-rate.",
                )
        state = self.state
        progress, left_s = clock.progress(state.step), clock.left_s(state.step)
        self._reporter.trained(Reading(state.step, progress, left_s, rate, gathered))
        warning = self._pace.warning(gathered.step_time_s)
        if warning is not None:
            self._reporter.note(warning)

    def _evaluate(self) -> None:
        state = self.state
        acceptance = evaluate(self._step, self._held_out.once(), at_step=state.step)
        state.history.append(acceptance)
        is_best = state.best is None or acceptance.score > state.best.score
        if is_best:
            state.best = acceptance
            self._folder.save_drafter(self._model, num_anchors=self._settings.anchors)
            self._folder.save_card(self._card(state))
            self._folder.save_best(acceptance)
        self._reporter.evaluated(acceptance, is_best=is_best)

    def _save(self) -> None:
        self._folder.save_state(self.state, self._model, self._optimizer, identity=self._identity)

    def _acknowledge_stop(self) -> None:
        self._reporter.note("Ending after this step; what is trained so far is kept.")

    def _interrupted(self) -> None:
        # A drafter of before is not given away for a few steps.
        if not self.state.history and not self._folder.has_drafter:
            self._evaluate()
        self._save()
        raise KeyboardInterrupt
