"""What a person sees while a drafter is trained."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from dspark.cli.progress import RedrawnReporter, Reporter, time_left

if TYPE_CHECKING:
    from rich.console import Console, Group

    from dspark.engine.training.acceptance import Acceptance
    from dspark.engine.training.generate import TextProgress
    from dspark.engine.training.trainer import Reading

# Between two lines where there is no terminal to redraw; a silence is longer than the wait for the next reading.
_PLAIN_EVERY_S = 15.0
_SILENCE_S = 20.0


class TrainReporter(Reporter):
    """A line a step, and one now and then in between; nothing without `note`."""

    def __init__(
        self, note: Callable[[str], None] | None = None, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        super().__init__(note, every_s=_SILENCE_S)
        self._clock = clock
        self._last_s = float("-inf")

    def note(self, text: str) -> None:
        """Something to know that stops nothing."""
        self.tell(text)

    def wrote(self, progress: TextProgress) -> None:
        """The target has written more text."""
        if self._due():
            self.tell(writing_line(progress))

    def trained(self, reading: Reading) -> None:
        """Some more steps are done."""
        if self._due():
            self.tell(reading_line(reading))

    def evaluated(self, acceptance: Acceptance, *, is_best: bool) -> None:
        """The held-out texts were measured."""
        self.tell(acceptance_line(acceptance, is_best=is_best))

    def _due(self) -> bool:
        now = self._clock()
        if now - self._last_s < _PLAIN_EVERY_S:
            return False
        self._last_s = now
        return True


class LiveTrainReporter(RedrawnReporter, TrainReporter):
    """A bar over the present step, the latest reading, and every measurement of the held-out texts."""

    def __init__(self, console: Console) -> None:
        super().__init__(console)
        self._share: float | None = None
        self._line = ""
        self._rates: tuple[float, ...] = ()

    def step(self, name: str, done: int = 0, total: int = 0) -> None:
        self._share, self._line, self._rates = (done / total if total else None), "", ()
        super().step(name, done, total)

    def note(self, text: str) -> None:
        self._console.print(text)

    def wrote(self, progress: TextProgress) -> None:
        self._share, self._line = progress.share, writing_line(progress)

    def trained(self, reading: Reading) -> None:
        self._share, self._line, self._rates = reading.progress, reading_line(reading), reading.gathered.acceptance

    def evaluated(self, acceptance: Acceptance, *, is_best: bool) -> None:
        # Above the live part, where it stays.
        self._console.print(acceptance_line(acceptance, is_best=is_best))

    def _render(self) -> Group:
        from rich.console import Group
        from rich.progress_bar import ProgressBar
        from rich.spinner import Spinner
        from rich.table import Table
        from rich.text import Text

        bar = ProgressBar(total=1.0, completed=self._share or 0.0, pulse=self._share is None, width=40)
        parts: list[Table | Text | Spinner | ProgressBar] = [Spinner("dots", Text(self.last_step))]
        if self._line:
            parts.append(Text(self._line))
        if self._rates:
            table = Table(title="Mean acceptance in training", title_justify="left")
            for position in range(1, 1 + len(self._rates)):
                table.add_column(str(position), justify="right")
            table.add_row(*(f"{rate:.3f}" for rate in self._rates))
            parts.append(table)
        return Group(*parts, bar)


def writing_line(progress: TextProgress) -> str:
    """How far the text is."""
    speed = progress.tokens / max(progress.elapsed_s, 1e-9)
    left_s = progress.elapsed_s * (1 / progress.share - 1) if progress.share else None
    end = ", finishing the texts under way" if progress.share >= 1 else time_left(left_s)
    return f"{progress.texts:,} texts, {progress.tokens:,} tokens, {speed:,.0f} tok/s{end}"


def reading_line(reading: Reading) -> str:
    """How training goes."""
    gathered = reading.gathered
    rates = " ".join(f"{rate:.2f}" for rate in gathered.acceptance)
    speed = f"{gathered.positions_per_s:,.0f} positions/s"
    return f"step {reading.step:,}: loss {gathered.loss:.4f}, acceptance {rates}, {speed}{time_left(reading.left_s)}"


def acceptance_line(acceptance: Acceptance, *, is_best: bool) -> str:
    """What the held-out texts gave."""
    parts = [
        f"{length:.3f} tokens a round at temperature {temperature}"
        for length, temperature in ((acceptance.sampled_length, 1), (acceptance.greedy_length, 0))
        if length is not None
    ]
    kept = "kept as the best so far" if is_best else "not better than before"
    return f"held out, step {acceptance.step:,}: {', '.join(parts)}; {kept}"
