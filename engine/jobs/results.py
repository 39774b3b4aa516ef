"""The output of a job: an append-only partial file while it runs, one sorted file when it is done."""

from __future__ import annotations

import contextlib
import os
import time
from array import array
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any

from dspark.engine.errors import EngineError, UsageError
from dspark.engine.jobs import strict_json
from dspark.engine.jobs.atomic_file import replaced, sync_folder
from dspark.engine.jobs.file_lock import names, taken, try_lock
from dspark.engine.jobs.output_places import PARTIAL_KEY, check_output, partial_path, real_path
from dspark.engine.jobs.record_form import is_record
from dspark.engine.jobs.run_header import differences

_FORMAT = 1
_MISSING = -1


class ResultFile:
    """Rows as they complete.

    `<output>.partial` begins with a header line that says what the rows depend on; each line after it is one row, an
    `index` with it; of a row that stands there twice the last line counts. `publish` writes the rows in index order
    under a temporary name and renames that to `output`, so the final name never holds half a file. Row bytes stay in
    the file; memory holds one offset a row.

    A row has left this process when `append` returns, so a kill loses none. The disk is only waited for by the first
    `append` after `sync_interval_s`, by `close` and by `publish`: a power cut may lose the rows appended since.

    Args:
        output: the final name.
        header: what must be the same for a partial file to be continued.
        num_rows: how many rows there will be.
        sync_interval_s: least time between two waits for the disk.

    Raises:
        UsageError: another process writes this output, or the partial file belongs to another run.
    """

    def __init__(
        self,
        output: Path,
        *,
        header: Mapping[str, Any],
        num_rows: int,
        resume: bool,
        overwrite: bool = False,
        sync_interval_s: float = 0.2,
    ) -> None:
        check_output(output, resume=resume, overwrite=overwrite)
        self.output = real_path(output)
        self.partial = partial_path(output)
        self._offsets = array("q", [_MISSING]) * num_rows
        self._num_done = 0
        self._sync_interval_s = sync_interval_s
        self._last_sync_s = time.monotonic()
        self._file = self._open_locked()
        try:
            self._start({PARTIAL_KEY: _FORMAT, **header}, keep=resume)
        except BaseException:
            self._file.close()
            raise

    @property
    def num_done(self) -> int:
        """Rows in the file, those of earlier runs included."""
        return self._num_done

    def is_done(self, index: int) -> bool:
        """Is row `index` in the file?"""
        return self._offsets[index] != _MISSING

    def append(self, index: int, record: Mapping[str, Any]) -> None:
        """Write one finished row."""
        content = strict_json.dumps({"index": index, **record}) + b"\n"
        offset = self._end
        try:
            self._write(content)
        except OSError:
            # Half a line would be taken for the torn end it is, but a later append must not glue itself to it.
            with contextlib.suppress(OSError):
                self._file.truncate(offset)
            raise
        self._offsets[index] = offset
        self._num_done += 1
        if time.monotonic() - self._last_sync_s >= self._sync_interval_s:
            self._sync()

    def records(self) -> Iterator[dict[str, Any]]:
        """The rows written so far, in index order; one such iterator at a time."""
        # Not by its name, which may have been taken away meanwhile.
        with open(os.dup(self._file.fileno()), "rb") as reader:
            for offset in self._offsets:
                if offset != _MISSING:
                    reader.seek(offset)
                    try:
                        record = strict_json.loads(reader.readline().decode("utf-8"))
                    except ValueError:
                        raise EngineError(
                            f"{self.partial} no longer holds the rows that were written to it",
                            "Something else changed it meanwhile: decode the file again.",
                        ) from None
                    yield record

    def publish(self, rows: Iterable[bytes]) -> None:
        """Write `rows`, one line each, under the final name at once. The partial file stays until `discard_partial`.

        Raises:
            EngineError: it cannot be written, and the partial file was removed, so that nothing is left to resume.
            OSError: it cannot be written.
        """
        try:
            with replaced(self.output) as writer:
                for row in rows:
                    writer.write(row + b"\n")
        except OSError as error:
            if names(self.partial, self._file.fileno()):
                raise
            raise EngineError(
                f"{self.output} cannot be written ({error.strerror}), and {self.partial} was removed meanwhile",
                "Nothing is left to resume: decode the file again.",
            ) from None

    def discard_partial(self) -> None:
        """The last step: from here on nothing is left to resume."""
        # Where it was removed, another run may have begun one of its own under that name.
        if names(self.partial, self._file.fileno()):
            self.partial.unlink()
        self._file.close()

    def close(self) -> None:
        """Leave the partial file as it is. Does nothing after `discard_partial`."""
        if not self._file.closed:
            with contextlib.suppress(OSError):
                self._sync()
            self._file.close()

    def _open_locked(self) -> IO[bytes]:
        try:
            file = self.partial.open("ab+", buffering=0)
        except OSError as error:
            raise UsageError(f"cannot write {self.partial}: {error.strerror}", "Give another --output.") from None
        # A run that finished in between has taken the name away from under this handle.
        if not (try_lock(file.fileno()) and names(self.partial, file.fileno())):
            file.close()
            raise taken(self.output, flag="--output")
        return file

    def _start(self, header: dict[str, Any], *, keep: bool) -> None:
        self._end = 0
        if keep:
            self._read_back(header)
        self._file.truncate(self._end)
        if self._end == 0:
            self._write(strict_json.dumps(header) + b"\n")
        self._sync()
        sync_folder(self.partial.parent)

    def _read_back(self, header: dict[str, Any]) -> None:
        """Take over the rows of an earlier run, up to an end that was not written whole."""
        self._file.seek(0)
        with open(os.dup(self._file.fileno()), "rb") as reader:
            line = reader.readline()
            first = _whole_line(line)
            if first is None:
                self._refuse_other_start(line, header)
                return
            different = differences(first, header)
            if different:
                raise UsageError(
                    f"{self.partial} comes from a run that differs in {'; '.join(different)}",
                    "Resume with the settings of that run, or give --overwrite to start again.",
                )
            self._end = reader.tell()
            traced = header.get("traces") is True
            for number, line in enumerate(reader, start=2):
                record = _whole_line(line)
                if not is_record(record, traced=traced):
                    self._refuse_rows_after(reader, number, traced=traced)
                    return
                assert record is not None
                index = record["index"]
                if not 0 <= index < len(self._offsets):
                    raise EngineError(
                        f"{self.partial} has a row {index}, the input has not", "Give --overwrite to start again."
                    )
                self._num_done += not self.is_done(index)
                self._offsets[index] = self._end
                self._end += len(line)

    def _refuse_rows_after(self, reader: Iterable[bytes], number: int, *, traced: bool) -> None:
        """Only at the end is a line that holds no row what a kill or a power cut left, and its row decoded again."""
        if any(is_record(_whole_line(line), traced=traced) for line in reader):
            raise EngineError(
                f"line {number} of {self.partial} holds no whole row, and rows follow it",
                "Something else changed the file: give --overwrite to start again.",
            )

    def _refuse_other_start(self, line: bytes, header: Mapping[str, Any]) -> None:
        """A first line that is not whole may be started anew only if it is what this run would have written."""
        if not strict_json.dumps(header).startswith(line):
            raise UsageError(
                f"{self.partial} breaks off in its first line and is not of this run",
                "Move it away, or give --overwrite to start again.",
            )

    def _write(self, content: bytes) -> None:
        view = memoryview(content)
        while view:
            view = view[self._file.write(view) :]
        self._end += len(content)

    def _sync(self) -> None:
        os.fsync(self._file.fileno())
        self._last_sync_s = time.monotonic()


def _whole_line(line: bytes) -> dict[str, Any] | None:
    """The record on a line, or None if the line is not all there."""
    if not line.endswith(b"\n"):
        return None
    try:
        record = strict_json.loads(line.decode("utf-8"))
    except ValueError:
        return None
    return record if isinstance(record, dict) else None
