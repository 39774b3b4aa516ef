"""How far a run is, and the learning rate there."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from dspark.engine.training.settings import TrainSettings

# Share of the highest learning rate that is left at the end.
_LAST_SHARE = 0.01


@dataclass(slots=True)
class RunClock:
    """Progress of a run of so many steps or seconds; seconds of an earlier process count."""

    settings: TrainSettings
    before_s: float = 0.0
    clock: Callable[[], float] = time.monotonic
    _started_s: float = field(init=False)

    def __post_init__(self) -> None:
        self._started_s = self.clock()

    @property
    def elapsed_s(self) -> float:
        """Seconds of training, all processes together."""
        return self.before_s + self.clock() - self._started_s

    def progress(self, step: int) -> float:
        """Share of the run that is done when `step` steps are."""
        if self.settings.steps is not None:
            return step / self.settings.steps
        assert self.settings.minutes is not None
        return self.elapsed_s / (60 * self.settings.minutes)

    def left_s(self, step: int) -> float | None:
        """Seconds until the end at the pace so far; None before there is one."""
        if self.settings.minutes is not None:
            return max(0.0, 60 * self.settings.minutes - self.elapsed_s)
        assert self.settings.steps is not None
        return None if step == 0 else (self.settings.steps - step) * self.elapsed_s / step


def learning_rate(settings: TrainSettings, progress: float) -> float:
    """A straight line up to the highest rate, then half a cosine down."""
    if progress < settings.warmup:
        # Never 0: the first step would be lost.
        return settings.learning_rate * max(progress / settings.warmup, 0.01)
    done = min(1.0, (progress - settings.warmup) / (1 - settings.warmup))
    share = _LAST_SHARE + (1 - _LAST_SHARE) * 0.5 * (1 + math.cos(math.pi * done))
    return settings.learning_rate * share
