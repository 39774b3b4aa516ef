"""One writer at a time: a lock on a file or folder, which its process holds until it closes it or dies."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

from dspark.engine.errors import UsageError


def try_lock(descriptor: int) -> bool:
    """Take what is open under `descriptor` for this process; False if another one has it.

    A file system without locks says True: two runs at once are then the user's to avoid.
    """
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return True
    return True


def names(path: Path, descriptor: int) -> bool:
    """Is `path` still the name of what is open under `descriptor`?"""
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except OSError:
        return False


def refuse_locked(place: Path, output: Path, *, flag: str) -> None:
    """Refuse early an `output` whose lock, on `place`, another process holds.

    Raises:
        UsageError: it does.
    """
    try:
        descriptor = os.open(place, os.O_RDONLY)
    except OSError:
        # It is not there, or whoever opens it to write will say why.
        return
    try:
        if not try_lock(descriptor):
            raise taken(output, flag=flag)
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def locked_folder(folder: Path, *, flag: str) -> Iterator[None]:
    """Hold `folder`, which is there, for the block.

    Raises:
        UsageError: another process holds it.
    """
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        if not try_lock(descriptor):
            raise taken(folder, flag=flag)
        yield
    finally:
        os.close(descriptor)


def taken(output: Path, *, flag: str) -> UsageError:
    """The refusal of an output that another process writes."""
    return UsageError(f"another process is writing {output}", f"Wait until it is done, or give another {flag}.")
