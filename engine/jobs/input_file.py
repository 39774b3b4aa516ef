"""The input of a job: a JSONL file, gzipped or not, or standard input."""

from __future__ import annotations

import gzip
import hashlib
import os
import shutil
import sys
import tempfile
import zlib
from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, cast

from dspark.engine.errors import EngineError, UsageError
from dspark.engine.jobs import strict_json
from dspark.engine.jobs.unused_fields import UnusedFields

_BOM = b"\xef\xbb\xbf"
_GZIP_MAGIC = b"\x1f\x8b"
_UTF16_BOMS = (b"\xff\xfe", b"\xfe\xff")


@dataclass(frozen=True, slots=True)
class Line:
    """One line that is not blank: `index` counts such lines from 0, `number` all lines from 1."""

    index: int
    number: int
    content: bytes


class InputFile:
    """An input that has been read through once: its rows are counted, its `custom_id`s are unique.

    It stays open, so that what is decoded is what was checked, even if the name is given to another file meanwhile.
    """

    def __init__(self, file: IO[bytes], *, name: str, path: Path | None) -> None:
        self.name = name
        self.path = path
        self._file = file
        self._marks = array("q")
        self._changed_line = 0
        self.unused_fields = UnusedFields()
        self.sha256 = self._check()

    @property
    def num_rows(self) -> int:
        """Lines that are not blank."""
        return len(self._marks)

    @property
    def dataset(self) -> str:
        """What the rows are called where they do not say: the file's name without its endings, nothing for a pipe."""
        return "" if self.path is None else self.path.name.split(".")[0]

    def lines(self) -> Iterator[Line]:
        """The lines that were counted, from the start; ends before the first that is not what it was then."""
        index = number = 0
        for line in self._lines():
            index, number = line.index, line.number
            if index == self.num_rows:
                return
            if hash(line.content) != self._marks[index]:
                self._changed_line = number
                return
            yield line
            index += 1
        if index < self.num_rows:
            self._changed_line = number + 1

    def check_unchanged(self) -> None:
        """After `lines()`: refuse an input that was rewritten meanwhile. Lines added behind it were never read.

        Raises:
            EngineError: it was.
        """
        if self._changed_line:
            raise EngineError(
                f"{self.name} has changed from line {self._changed_line} on since it was checked",
                "Put the old lines back and give --resume, or start again with --overwrite.",
            )

    def close(self) -> None:
        """Let go of the file; its rows can be read no more."""
        self._file.close()

    def _lines(self) -> Iterator[Line]:
        """All lines that are not blank. Only `\\n` ends a line."""
        self._file.seek(0)
        zipped = self._file.read(2) == _GZIP_MAGIC
        self._file.seek(0)
        stream = cast("IO[bytes]", gzip.GzipFile(fileobj=self._file)) if zipped else self._file
        index = 0
        try:
            for number, line in enumerate(stream, start=1):
                content = line.removeprefix(_BOM) if number == 1 else line
                if number == 1 and content.startswith(_UTF16_BOMS):
                    raise UsageError(f"{self.name} is UTF-16", "Convert it to UTF-8: iconv -f UTF-16 -t UTF-8.")
                content = content.rstrip(b"\r\n")
                if content.strip():
                    yield Line(index, number, content)
                    index += 1
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            raise UsageError(f"{self.name} is a damaged gzip file: {error}", "Fetch or compress it again.") from None

    def _check(self) -> str:
        digest = hashlib.sha256()
        first_lines: dict[str, int] = {}
        for line in self._lines():
            self._marks.append(hash(line.content))
            digest.update(line.content + b"\n")
            fields = _fields(line.content)
            self.unused_fields.add(fields)
            custom_id = fields.get("custom_id")
            if not isinstance(custom_id, str):
                continue
            first = first_lines.setdefault(custom_id, line.number)
            if first != line.number:
                raise UsageError(
                    f"{self.name}: custom_id {strict_json.dumps(custom_id).decode()} stands on line {first} "
                    f"and again on line {line.number}",
                    "Give each row an id of its own, or none.",
                )
        return digest.hexdigest()


def open_input(source: str, *, flag: str = "--input") -> InputFile:
    """Open and check a file, or standard input for `-`; what cannot be read twice is copied to a temporary file.

    flag: that named it.

    Raises:
        UsageError: it cannot be read, or two rows have one `custom_id`.
    """
    if source == "-":
        if sys.stdin is None:
            raise UsageError("standard input is closed", f"Pipe the rows into it, or give {flag} a file.")
        return InputFile(_spooled(sys.stdin.buffer), name="standard input", path=None)
    path = Path(source)
    file = _opened(path, flag)
    if not file.seekable():
        with file:
            return InputFile(_spooled(file), name=source, path=None)
    return InputFile(file, name=source, path=path)


def check_readable(source: str, *, flag: str = "--input") -> None:
    """Refuse an input that cannot even be opened; standard input is left alone.

    flag: that named it.

    Raises:
        UsageError: with the reason.
    """
    # Opening a pipe would wait for its writer, and lose what it wrote.
    if source != "-" and (os.path.isfile(source) or os.path.isdir(source) or not os.path.exists(source)):
        _opened(Path(source), flag).close()


def _opened(path: Path, flag: str) -> IO[bytes]:
    try:
        return path.open("rb")
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}", f"Check the path given to {flag}.") from None


def _spooled(stream: IO[bytes]) -> IO[bytes]:
    spool = tempfile.TemporaryFile()  # noqa: SIM115 - the InputFile closes it
    shutil.copyfileobj(stream, spool)
    return cast("IO[bytes]", spool)


def _fields(content: bytes) -> dict[str, Any]:
    """What a line holds; nothing if it is no row. What is wrong with it is told when it is decoded."""
    try:
        row = strict_json.loads(content.decode("utf-8"))
    except ValueError:
        return {}
    return row if isinstance(row, dict) else {}
