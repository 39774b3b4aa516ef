"""A table of the rounds of a decode run, a row each, written while they run."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from dspark.engine.errors import UsageError
from dspark.engine.jobs.atomic_file import replaced
from dspark.engine.jobs.output_places import check_document

if TYPE_CHECKING:
    import pyarrow as pa

    from dspark.engine.round_meter import RoundMetrics

_ENDINGS = (".parquet", ".csv")
# Rounds kept before they are written together: a long job has millions, of a fraction of a millisecond each.
_ROUNDS_AT_ONCE = 8192
# Column, its type, and the field of `RoundMetrics` that it holds.
_COLUMNS = (
    ("requests", "int32", "requests"),
    ("batch_tokens", "int32", "batch_tokens"),
    ("bucket", "int32", "bucket"),
    ("wasted_tokens", "int32", "wasted_tokens"),
    ("drafted_tokens", "int32", "drafted_tokens"),
    ("expected_tokens", "float64", "expected_tokens"),
    ("emitted_tokens", "int32", "emitted"),
    ("predicted_step_s", "float64", "predicted_step_s"),
    ("measured_step_s", "float64", "measured_step_s"),
    ("predicted_round_s", "float64", "predicted_s"),
    ("measured_round_s", "float64", "measured_s"),
)


@dataclass(frozen=True, slots=True)
class RoundFile:
    """Where the rounds go: Parquet or CSV, as the name ends.

    Raises:
        UsageError: the name ends otherwise.
    """

    path: Path

    def __post_init__(self) -> None:
        if self.path.suffix not in _ENDINGS:
            raise UsageError(f"rounds {self.path} has no ending of a table", f"Use {' or '.join(_ENDINGS)}.")

    @classmethod
    def asked(cls, path: Path | None, *, one_engine: bool) -> RoundFile | None:
        """None where no path is given. one_engine: do all rounds run in this process.

        Raises:
            UsageError: they do not, or the path is no place for a table.
        """
        if path is None:
            return None
        if not one_engine:
            raise UsageError(
                "rounds tells of the rounds of one engine, and workers have one each",
                "Leave --rounds or the workers out.",
            )
        file = cls(path)
        check_document(path, flag="--rounds")
        return file

    @contextmanager
    def writing(self) -> Iterator[Callable[[RoundMetrics], None]]:
        """What it gives takes in one round after another; at the end of the block they are all in the file.

        Until then, and after an exception, the file is what it was before.

        Raises:
            OSError: it cannot be written.
        """
        with replaced(self.path) as sink:
            writer = _TableWriter(sink, csv=self.path.suffix == ".csv")
            try:
                yield writer.add
                writer.close()
            except BaseException:
                writer.abandon()
                raise


class _TableWriter:
    """Writes rounds in pieces; memory holds one piece."""

    def __init__(self, sink: IO[bytes], *, csv: bool) -> None:
        import pyarrow as pa
        from pyarrow.csv import CSVWriter
        from pyarrow.parquet import ParquetWriter

        self._schema = pa.schema([("round", pa.int64()), *((name, getattr(pa, kind)()) for name, kind, _ in _COLUMNS)])
        self._writer = (CSVWriter if csv else ParquetWriter)(sink, self._schema)
        self._rounds: list[RoundMetrics] = []
        self._numbers = count()

    def add(self, round: RoundMetrics) -> None:
        self._rounds.append(round)
        if len(self._rounds) == _ROUNDS_AT_ONCE:
            self._flush()

    def close(self) -> None:
        self._flush()
        self._writer.close()

    def abandon(self) -> None:
        """What was written is of no use; a writer left open would complain when the sink is gone."""
        with suppress(Exception):
            self._writer.close()

    def _flush(self) -> None:
        if self._rounds:
            self._writer.write_table(self._table())
            self._rounds.clear()

    def _table(self) -> pa.Table:
        import pyarrow as pa

        columns: dict[str, Any] = {"round": [next(self._numbers) for _ in self._rounds]}
        columns |= {name: [getattr(round, field) for round in self._rounds] for name, _, field in _COLUMNS}
        return pa.table(columns, schema=self._schema)
