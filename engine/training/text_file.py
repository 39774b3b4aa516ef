"""JSONL of texts that a target wrote: one line a text, appended as it is finished."""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any

from dspark.engine.errors import EngineError, UsageError
from dspark.engine.jobs import strict_json
from dspark.engine.jobs.file_lock import names, taken, try_lock
from dspark.engine.training.settings import PARTIAL_SUFFIX
from dspark.engine.value_kinds import is_number


@dataclass(frozen=True, slots=True)
class Text:
    """A prompt, what the target wrote behind it, and at which temperature."""

    prompt_token_ids: list[int]
    token_ids: list[int]
    temperature: float = 1.0
    source: str = "unknown"  # "prompt", "question" (asked by the target itself) or "opening" (no question at all)
    index: int = -1
    elapsed_s: float = 0.0  # since the first text was asked for

    @property
    def num_tokens(self) -> int:
        """Tokens that the target wrote."""
        return len(self.token_ids)


class TextFile:
    """Appends texts to `<path>.partial`, which becomes `path` when all are there.

    A line has left this process when `append` returns; a kill leaves at most one torn line, which the next run cuts
    off.

    Raises:
        UsageError: another process writes it.
    """

    def __init__(self, path: Path, *, resume: bool) -> None:
        self.path = path
        self.partial = path.with_name(path.name + PARTIAL_SUFFIX)
        path.parent.mkdir(parents=True, exist_ok=True)
        # Unbuffered: every line is one write.
        self._file: IO[bytes] = self.partial.open("ab+", buffering=0)
        if not (try_lock(self._file.fileno()) and names(self.partial, self._file.fileno())):
            self._file.close()
            raise taken(path, flag="--data")
        if not resume:
            self._file.truncate(0)
        self._cut_torn_line()

    def texts(self) -> Iterator[Text]:
        """What is there so far."""
        return read_texts(self.partial)

    def append(self, text: Text) -> None:
        """Write one text."""
        content = memoryview(strict_json.dumps(asdict(text)) + b"\n")
        while content:
            content = content[self._file.write(content) :]

    def publish(self) -> None:
        """All texts are there: give the file its name.

        Raises:
            EngineError: the file was removed meanwhile.
        """
        os.fsync(self._file.fileno())
        if not names(self.partial, self._file.fileno()):
            raise EngineError(
                f"{self.partial} was removed while text was written to it", "Start again: the text is lost."
            )
        os.replace(self.partial, self.path)
        self._file.close()

    def close(self) -> None:
        """Keep what is there for a later run."""
        if not self._file.closed:
            with contextlib.suppress(OSError):
                os.fsync(self._file.fileno())
            self._file.close()

    def _cut_torn_line(self) -> None:
        with self.partial.open("rb") as reader:
            end = sum(len(line) for line in reader if line.endswith(b"\n"))
        self._file.truncate(end)


def read_texts(path: Path) -> Iterator[Text]:
    """The texts of a file.

    Raises:
        UsageError: it cannot be read, or a line is no text.
    """
    try:
        with path.open("rb") as reader:
            for number, line in enumerate(reader, start=1):
                if line.strip():
                    yield _text(line, f"{path}, line {number}")
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}", "Check the path given to --data.") from None


def file_digest(path: Path) -> str:
    """sha256 of a file's bytes."""
    with path.open("rb") as reader:
        return hashlib.file_digest(reader, "sha256").hexdigest()


def _text(line: bytes, where: str) -> Text:
    remedy = "Give --data a file that `dspark train` wrote, or rows of that form."
    try:
        row = strict_json.loads(line.decode("utf-8"))
    except ValueError as error:
        raise UsageError(f"{where} is not JSON ({error})", remedy) from None
    known = set(Text.__dataclass_fields__)
    if not isinstance(row, dict) or not row.keys() <= known:
        raise UsageError(f"{where} is no row of {', '.join(sorted(known))}", remedy)
    for name in ("prompt_token_ids", "token_ids"):
        if not _is_tokens(row.get(name)):
            raise UsageError(f"{where}: `{name}` is no list of token ids", remedy)
    temperature = row.get("temperature", 1.0)
    if not is_number(temperature) or temperature < 0:
        raise UsageError(f"{where}: `temperature` is no number of at least 0", remedy)
    return Text(**row)


def _is_tokens(value: Any) -> bool:
    return isinstance(value, list) and all(type(token) is int and 0 <= token < 2**31 for token in value)
