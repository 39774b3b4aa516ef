"""Files that appear whole or not at all."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


@contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """A path to write to; what is there when the block ends well becomes `path`, whose folder is made if need be.

    Whoever opens `path` meanwhile sees what was there before, and so does everyone after an exception.

    Raises:
        OSError: the place cannot be written.
    """
    unfinished = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        yield unfinished
        os.replace(unfinished, path)
    finally:
        # Nothing is left of it after a success, and where its folder is a file there never was anything.
        with suppress(OSError):
            unfinished.unlink(missing_ok=True)
