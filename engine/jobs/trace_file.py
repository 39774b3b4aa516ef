"""Where the rounds of a decode run go."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from dspark.engine.errors import UsageError

ENDINGS = (".parquet", ".csv")


@dataclass(frozen=True, slots=True)
class TraceFile:
    """A trace file to write, and the pair whose rounds it holds, as the user named it.

    Raises:
        UsageError: the name has another ending than traces have.
    """

    path: Path
    target: str
    drafter: str

    def __post_init__(self) -> None:
        if self.path.suffix not in ENDINGS:
            raise UsageError(f"traces {self.path} has no ending of a trace file", f"Use {' or '.join(ENDINGS)}.")
