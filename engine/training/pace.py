"""Whether the steps of a run are far too slow for what it was asked to do."""

from __future__ import annotations

from dataclasses import dataclass

from dspark.engine.training.settings import TrainSettings

# Fewer steps teach a drafter next to nothing.
_FEWEST_STEPS = 30
# Whoever asks for many steps, each of them quick, knows that they take long; slow ones come as a surprise.
_LONG_RUN_S = 2 * 3600.0
_SLOW_STEP_S = 1.0


@dataclass(slots=True)
class Pace:
    """Judges a run by its first step that shows how long steps take.

    Args:
        compiles: the first reading takes in the compilation of kernels, and tells nothing of the steps after it.
    """

    settings: TrainSettings
    compiles: bool
    _judged: bool = False

    def warning(self, step_time_s: float) -> str | None:
        """What to say of steps of `step_time_s` seconds, once a run; None if they will do."""
        if self._judged:
            return None
        if self.compiles:
            self.compiles = False
            return None
        self._judged = True
        steps, minutes = self.settings.steps, self.settings.minutes
        if minutes is not None:
            fitting = int(60 * minutes / max(step_time_s, 1e-9))
            if fitting >= _FEWEST_STEPS:
                return None
            times = {0: "not even once", 1: "once"}.get(fitting, f"{fitting} times")
            outcome = f"which fits {times} into --minutes {minutes:g}, too few to teach a drafter much"
        else:
            assert steps is not None
            if step_time_s < _SLOW_STEP_S or steps * step_time_s < _LONG_RUN_S:
                return None
            outcome = f"so the {steps:,} of --steps take about {steps * step_time_s / 3600:,.0f} hours"
        return f"A step takes {step_time_s:,.1f} s here, {outcome}: lower {self._sizes}."

    @property
    def _sizes(self) -> str:
        chosen = self.settings
        return f"--rows ({chosen.rows}), --row-tokens ({chosen.row_tokens}) or --anchors ({chosen.anchors})"
