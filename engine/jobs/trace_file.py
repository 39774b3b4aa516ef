"""Where the rounds of a decode run go."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from dspark.engine.errors import UsageError
from dspark.engine.jobs.output_places import check_document
from dspark.engine.models.aliases import NO_DRAFTER, drafter_for

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

    @classmethod
    def asked(cls, path: Path | None, *, target: str, drafter: str | None, policy: str | None) -> TraceFile | None:
        """None where no path is given. Target, drafter and policy as in `EngineConfig`.

        Raises:
            UsageError: nothing is drafted, or the path is no place for a trace file.
        """
        if path is None:
            return None
        name = drafter_for(target, drafter)
        if NO_DRAFTER in (policy, name):
            raise UsageError("traces are of drafted tokens, and nothing is drafted", "Leave --traces out.")
        file = cls(path, target, name)
        check_document(path, flag="--traces")
        return file
