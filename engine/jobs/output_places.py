"""Where a job's files go: their names, and what can be refused of them before anything is computed."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from dspark.engine.errors import UsageError
from dspark.engine.jobs.atomic_file import temporary_path
from dspark.engine.jobs.file_lock import refuse_locked
from dspark.engine.jobs.workdir_names import DECODED
from dspark.engine.wording import shortened

# The first key of a partial file's header line, whatever run it is of.
PARTIAL_KEY = "dspark_partial"
_SIGNATURE = f'{{"{PARTIAL_KEY}": '.encode()
# Bytes; common file systems agree on them.
_LONGEST_NAME, _LONGEST_PATH = 255, 4095


def real_path(output: Path) -> Path:
    """The file behind a symbolic link, so that renaming replaces it and not the link."""
    return Path(os.path.realpath(output)) if output.is_symlink() else output


def partial_path(output: Path) -> Path:
    """Where the rows of an unfinished run are, in the order in which they were done."""
    output = real_path(output)
    return output.with_name(output.name + ".partial")


def metrics_path(output: Path) -> Path:
    """Where the metrics of `output` go if no place is named: beside it, and no two outputs share one."""
    stem = output.name.removesuffix(".jsonl")
    # `a` and `a.jsonl` are two outputs, and so are `a.b` and `a.b.jsonl`.
    joint = "." if stem != output.name else "-"
    return output.with_name(f"{stem}{joint}metrics.json")


def is_finished(output: Path) -> bool:
    """Is the output there, and no run that would replace it under way or interrupted?"""
    return output.is_file() and not partial_path(output).exists()


@dataclass(frozen=True, slots=True)
class DecodePlaces:
    """Where the rows and the metrics of a decoding job go."""

    output: Path
    metrics: Path
    workdir: Path | None  # that the output is in unasked; None: the output was named
    beside_output: bool  # the metrics, since no place was named for them

    @classmethod
    def named(cls, output: Path | None, metrics: Path | None, *, workdir: Path) -> DecodePlaces:
        """The places as named, the work directory in place of a name for the output.

        Raises:
            UsageError: a name is empty, or that of a folder alone.
        """
        place = workdir / DECODED if output is None else output
        for flag, given in (("--output", place), ("--metrics", metrics)):
            if given is not None and not given.name:
                raise UsageError(f"{flag} {str(given)!r} names no file", f"Give {flag} the name of a file.")
        return cls(
            output=place,
            metrics=metrics or metrics_path(place),
            workdir=workdir if output is None else None,
            beside_output=metrics is None,
        )

    def check_output(self, *, resume: bool, overwrite: bool) -> bool:
        """Refuse a place for the rows; True if they are all there, so that nothing is left to resume.

        Raises:
            UsageError: as `check_output`, or the work directory is no place for files.
        """
        refuse_both(resume=resume, overwrite=overwrite)
        if self.workdir is not None:
            check_folder(self.workdir, flag="--workdir")
        check_name(self.output, flag="--output")
        if resume and is_finished(self.output):
            return True
        check_output(self.output, resume=resume, overwrite=overwrite)
        if self.beside_output:
            check_document(self.metrics, flag="--output")
        return False

    def check_metrics(self) -> None:
        """Refuse a place that was named for the metrics.

        Raises:
            UsageError: as `check_document`.
        """
        if not self.beside_output:
            check_document(self.metrics, flag="--metrics")


def check_output(output: Path, *, resume: bool, overwrite: bool) -> None:
    """Refuse early, before a model is loaded, what `ResultFile` would refuse later.

    Raises:
        UsageError: the output exists and neither flag says what to do with it, another process is writing it, or it
            is no place for a file.
    """
    check_name(output, flag="--output")
    check_name(real_path(output), flag="--output")
    if output.exists() and not output.is_file():
        raise UsageError(f"{output} is not a file", "Give --output the name of a file.")
    partial = partial_path(output)
    if partial.exists() and not (partial.is_file() and _is_ours(partial)):
        raise UsageError(f"{partial} is not a partial result file", "Move it away, or give another --output.")
    refuse_locked(partial, output, flag="--output")
    if resume and is_finished(output):
        raise UsageError(f"{output} is finished: there is nothing to resume", "Give --overwrite to decode it again.")
    if not resume and not overwrite:
        if partial.exists():
            raise UsageError(
                f"{partial} holds an unfinished run", "Give --resume to go on with it or --overwrite to start again."
            )
        if output.exists():
            raise UsageError(f"{output} exists", "Give --overwrite to replace it, or another --output.")
    check_folder(real_path(output).parent, flag="--output")


def check_document(path: Path, *, flag: str) -> None:
    """Refuse early a place where a file that is simply replaced cannot be written.

    Raises:
        UsageError: with the reason.
    """
    check_name(path, flag=flag)
    if path.exists() and not path.is_file():
        raise UsageError(f"{path} is not a file", f"Give {flag} the name of a file.")
    check_folder(path.parent, flag=flag)


def check_name(path: Path, *, flag: str) -> None:
    """Refuse a name too long for the file, for those that stand beside it until it is whole, or for a folder above it.

    Raises:
        UsageError: it is, or it is `-`, which elsewhere means a standard stream.
    """
    _refuse_dash(path, flag)
    beside = (path.with_name(path.name + ".partial"), temporary_path(path)) if path.name else ()
    _refuse_long(path.name, max((len(os.fsencode(other.name)) for other in beside), default=0), _LONGEST_NAME, flag)
    _refuse_long_folder(path.parent, flag)
    for other in beside:
        _refuse_long(str(path), len(os.fsencode(os.path.abspath(other))), _LONGEST_PATH, flag)


def check_folder(folder: Path, *, flag: str) -> None:
    """Make `folder` if need be.

    Raises:
        UsageError: it cannot be made or written to.
    """
    _refuse_dash(folder, flag)
    _refuse_long_folder(folder, flag)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"cannot create {folder}: {error.strerror}", f"Give another {flag}.") from None
    if not os.access(folder, os.W_OK | os.X_OK):
        raise UsageError(f"{folder} cannot be written to", f"Give another {flag}, or change its permissions.")


def refuse_both(*, resume: bool, overwrite: bool) -> None:
    """Refuse two flags that contradict each other.

    Raises:
        UsageError: both are given.
    """
    if resume and overwrite:
        raise UsageError("--resume and --overwrite exclude each other", "Keep one of them.")


def _refuse_dash(path: Path, flag: str) -> None:
    if str(path) == "-":
        raise UsageError(
            f"{flag} is `-`, and results go to files",
            f"Give {flag} a name; standard output takes the totals alone, with --json.",
        )


def _refuse_long_folder(folder: Path, flag: str) -> None:
    for name in folder.parts:
        _refuse_long(name, len(os.fsencode(name)), _LONGEST_NAME, flag)
    _refuse_long(str(folder), len(os.fsencode(os.path.abspath(folder))), _LONGEST_PATH, flag)


def _refuse_long(name: str, length: int, longest: int, flag: str) -> None:
    if length > longest:
        raise UsageError(
            f"the name {shortened(name)} given to {flag} is too long", f"Make it {length - longest} bytes shorter."
        )


def _is_ours(partial: Path) -> bool:
    try:
        with partial.open("rb") as reader:
            start = reader.read(len(_SIGNATURE))
    except OSError:
        # Opening it to write will say why.
        return True
    return _SIGNATURE.startswith(start)
