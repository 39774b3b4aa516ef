"""The built-in target: fetched and converted once into an ordinary model folder in the cache directory."""

from __future__ import annotations

import errno
import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from dspark.engine.errors import CheckpointError
from dspark.engine.models.builtin_convert import convert_gguf
from dspark.engine.models.builtin_fetch import SMOLLM2, Source, fetch_gguf
from dspark.engine.progress import Progress
from dspark.engine.wording import first_line

# Raise it whenever a conversion would write something else: existing folders are then converted again.
CONVERTER_VERSION = 1
# Of the weights; folders that an earlier version converted do not say it where it is looked for.
BUILTIN_LICENCE = "apache-2.0"
MARKER_NAME = "dspark-builtin.json"
WAIT_STEP = "Waiting for another dspark that prepares the built-in model"


def cache_dir() -> Path:
    """Where fetched and converted models are kept: DSPARK_CACHE_DIR, else `dspark` in the user's cache."""
    own = os.environ.get("DSPARK_CACHE_DIR")
    if own:
        return Path(own).expanduser()
    general = os.environ.get("XDG_CACHE_HOME")
    return (Path(general) if general else Path.home() / ".cache") / "dspark"


def builtin_target(*, progress: Progress | None = None) -> Path:
    """The folder of SmolLM2-135M-Instruct, made on the first call."""
    return materialise(SMOLLM2, cache_dir() / "models" / "smollm2-135m", progress=progress)


def materialise(source: Source, folder: Path, *, progress: Progress | None = None) -> Path:
    """Make `folder` from `source` unless it is there already; it appears complete or not at all."""
    if is_complete(folder, source):
        return folder
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with _only_one(folder, progress):
            # Another process may have finished while this one waited.
            if not is_complete(folder, source):
                _remove_leftovers(folder)
                _check_free_space(source, folder)
                _build(source, folder, progress)
    except OSError as error:
        raise _disk_error(error, source, folder) from error
    return folder


def is_complete(folder: Path, source: Source) -> bool:
    """Does `folder` hold every file that `source` was made into, as it was written?"""
    try:
        marker = json.loads((folder / MARKER_NAME).read_text(encoding="utf-8"))
        return bool(marker == _marker(folder, source, names=list(marker["files"])))
    except (OSError, ValueError, KeyError, TypeError):
        return False


def _build(source: Source, folder: Path, progress: Progress | None) -> None:
    # Random, so that a pip that outlives a killed dspark writes into a folder nobody uses any more.
    work = Path(tempfile.mkdtemp(prefix=_work_prefix(folder), dir=folder.parent))
    try:
        gguf = fetch_gguf(source, work, progress=progress)
        model = work / "model"
        model.mkdir()
        convert_gguf(gguf, model, progress=progress)
        marker = _marker(model, source, names=sorted(path.name for path in model.iterdir()))
        (model / MARKER_NAME).write_text(json.dumps(marker, indent=2) + "\n", encoding="utf-8")
        _sync(model)
        if folder.exists():
            folder.rename(work / "old")
        model.rename(folder)
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _marker(folder: Path, source: Source, *, names: list[str]) -> dict[str, Any]:
    return {
        "converter": CONVERTER_VERSION,
        "source": source.requirement,
        "wheel_sha256": source.wheel_sha256,
        "gguf_sha256": source.gguf_sha256,
        "files": {name: (folder / name).stat().st_size for name in names},
    }


@contextmanager
def _only_one(folder: Path, progress: Progress | None) -> Iterator[None]:
    from filelock import FileLock, Timeout

    # The operating system releases it when the process dies, however it dies.
    lock = FileLock(folder.with_name(folder.name + ".lock"))
    try:
        lock.acquire(timeout=0)
    except Timeout:
        if progress is not None:
            progress(WAIT_STEP, 0, 0)
        lock.acquire()
    try:
        yield
    finally:
        lock.release()


def _work_prefix(folder: Path) -> str:
    return f"{folder.name}.partial-"


def _remove_leftovers(folder: Path) -> None:
    for leftover in folder.parent.glob(_work_prefix(folder) + "*"):
        shutil.rmtree(leftover, ignore_errors=True)


def _check_free_space(source: Source, folder: Path) -> None:
    if shutil.disk_usage(folder.parent).free < source.peak_disk_bytes:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def _sync(folder: Path) -> None:
    # Otherwise a power cut after the rename could leave the right names and sizes with nothing in them.
    for path in folder.iterdir():
        with path.open("rb+") as file:
            os.fsync(file.fileno())


def _disk_error(error: OSError, source: Source, folder: Path) -> CheckpointError:
    remedy = "Set DSPARK_CACHE_DIR to a folder that can be written to."
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        needed_mb = -(-source.peak_disk_bytes // 1_000_000)
        return CheckpointError(
            f"there is not enough space in {folder.parent} to prepare the built-in model: {needed_mb} MB are needed",
            remedy="Free some space, or set DSPARK_CACHE_DIR to a folder on a larger disk.",
        )
    return CheckpointError(
        f"the built-in model cannot be prepared in {folder.parent}: {first_line(error)}", remedy=remedy
    )
