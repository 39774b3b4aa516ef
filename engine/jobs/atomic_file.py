"""Files that appear whole or not at all."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import IO


@contextlib.contextmanager
def replaced(path: Path) -> Iterator[IO[bytes]]:
    """A handle to write to; when the block ends well, what it holds is `path`, safe from a power cut too.

    Whoever opens `path` meanwhile sees what was there before, and so does everyone after an exception. A folder that is
    not there is made: one that was removed during a long run must not cost what was computed.
    """
    temporary = temporary_path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        with temporary.open("wb") as writer:
            yield writer
            writer.flush()
            os.fsync(writer.fileno())
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise
    sync_folder(path.parent)


def temporary_path(path: Path) -> Path:
    """The name under which this process writes what becomes `path`."""
    return path.with_name(f".{path.name}.{os.getpid()}.tmp")


def sync_folder(folder: Path) -> None:
    """Make a new name in `folder` survive a power cut, where the file system can."""
    with contextlib.suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
