"""What a person sees while buckets are measured."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import TYPE_CHECKING

from dspark.cli.progress import RedrawnReporter, Reporter

if TYPE_CHECKING:
    from rich.console import Console, Group
    from rich.table import Table

    from dspark.engine.profiling.plan import Point

_PART_NAMES = {
    "target": "target step",
    "draft": "draft block",
    "verify_greedy": "verification, greedy",
    "verify_sampled": "verification, sampled",
}


class ProfileReporter(Reporter):
    """A line a step; nothing without `note`."""

    def measured(self, point: Point, samples_s: Sequence[float]) -> None:
        """One more sample of `point` was taken."""


class LiveProfileReporter(RedrawnReporter, ProfileReporter):
    """A bar over the present step, and a table that fills as buckets are measured."""

    def __init__(self, console: Console) -> None:
        super().__init__(console)
        # (part, bucket) -> its point with the fewest requests behind the shortest context, and samples of that one
        self._rows: dict[tuple[str, int], tuple[tuple[int, int, int], Sequence[float]]] = {}

    def measured(self, point: Point, samples_s: Sequence[float]) -> None:
        if point.held_out:
            return
        rank = (point.num_requests, point.context_tokens, -point.num_tokens)
        key = (point.kind, point.bucket)
        shown = self._rows.get(key)
        if shown is None or rank <= shown[0]:
            self._rows[key] = (rank, samples_s)

    def _render(self) -> Group:
        from rich.console import Group
        from rich.progress_bar import ProgressBar
        from rich.spinner import Spinner
        from rich.text import Text

        done, total = self._count
        bar = ProgressBar(total=total or None, completed=done, pulse=not total, width=40)
        return Group(*([self._table()] if self._rows else []), Spinner("dots", Text(self.last_step)), bar)

    def _table(self) -> Table:
        from rich.table import Table

        table = Table(title="Fewest requests, shortest context", title_justify="left")
        table.add_column("part")
        for header in ("bucket", "samples", "median ms", "min-max ms", "per s"):
            table.add_column(header, justify="right")
        # The table of a large engine is longer than a screen: the part that changes is what is looked at.
        height = max(self._console.size.height - 8, 4)
        order = {part: place for place, part in enumerate(_PART_NAMES)}
        rows = sorted(self._rows.items(), key=lambda row: (order[row[0][0]], row[0][1]))
        for (part, bucket), (_, samples_s) in rows[:height]:
            ms = [s * 1e3 for s in samples_s]
            middle = median(ms)
            spread = f"{min(ms):.2f}-{max(ms):.2f}"
            table.add_row(_PART_NAMES[part], str(bucket), str(len(ms)), f"{middle:.2f}", spread, f"{1e3 / middle:,.1f}")
        return table
