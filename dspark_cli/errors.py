"""The error table: from an exception to a sentence, a remedy and an exit code."""

from __future__ import annotations

import errno
import re
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import ParamSpec, TypeVar, cast

import typer

from dspark.engine.errors import DsparkError, RequestError, UsageError

FAILURE, USAGE, ERROR_ROWS, INTERRUPTED = 1, 2, 3, 130

# The parser's base class has moved between Typer's releases; what it derives from has not.
PARSER_ERROR: type[Exception] = typer.BadParameter.__mro__[2]
# How Typer's releases say so; the value is not in all of their sentences.
_NO_NUMBER = re.compile(r"\bvalid (integer|int|number|float)\b")
_ARRAY_ERRORS = (
    ("dspark.calibration.errors", "CalibrationError"),
    ("dspark.profiles.errors", "ProfileError"),
)


Params = ParamSpec("Params")
Made = TypeVar("Made")


class Interrupted(DsparkError):
    """The user stopped a run; the remedy says what there is of it."""


class SeveralRefused(UsageError):
    """Several usage errors; together they are one sentence, and their remedies one after the other."""

    def __init__(self, errors: Sequence[UsageError]) -> None:
        super().__init__("; ".join(map(str, errors)), " ".join(dict.fromkeys(error.remedy for error in errors)))
        self.errors = tuple(errors)


@contextmanager
def flags_named(ctx: typer.Context) -> Iterator[None]:
    """Have usage errors that begin with a parameter's name name the flag instead; its values are usage, not a row's."""
    try:
        yield
    except (UsageError, RequestError) as error:
        name, space, rest = str(error).partition(" ")
        flags = {param.name: flag for param in ctx.command.params for flag in param.opts if flag.startswith("--")}
        raise UsageError(flags.get(name, name) + space + rest, error.remedy) from error


class Refusals:
    """Collects the usage errors of checks that do not wait for each other, so that one run tells them all."""

    def __init__(self, ctx: typer.Context) -> None:
        self._ctx = ctx
        self._errors: list[UsageError] = []

    def __bool__(self) -> bool:
        return bool(self._errors)

    @contextmanager
    def collected(self) -> Iterator[None]:
        """Keep a usage error of the block for later."""
        try:
            yield
        except UsageError as error:
            self._errors.append(error)

    def made(self, make: Callable[Params, Made], *args: Params.args, **kwargs: Params.kwargs) -> Made:
        """What `make` gives of option values; its usage errors are kept, with flags for the names of its parameters.

        Whatever is refused is None, of no use to anybody before `tell`, and nobody gets past that.
        """
        with self.collected(), flags_named(self._ctx):
            return make(*args, **kwargs)
        return cast(Made, None)

    def made_each(self, make: Callable[..., Made], **values: object) -> Made:
        """As `made`, where `make` ends at the first value that it refuses: each is tried by itself, then all."""
        known = len(self._errors)
        for name, value in values.items():
            self.made(make, **{name: value})
        return self.made(make, **values) if len(self._errors) == known else cast(Made, None)

    def tell(self) -> None:
        """Raise what was collected, as one.

        Raises:
            UsageError: something was; a SeveralRefused if it was more than one thing.
        """
        if len(self._errors) == 1:
            raise self._errors[0]
        if self._errors:
            raise SeveralRefused(self._errors) from self._errors[0]


@dataclass(frozen=True, slots=True)
class Explanation:
    """How an exception is told to people (`trace` only where it is a fault of ours).

    `parts`: where it tells of several things, each of them with its own remedy.
    """

    message: str
    remedy: str
    exit_code: int
    trace: str = ""
    parts: tuple[Explanation, ...] = ()


def explain(error: BaseException, *, resumable: bool) -> Explanation:
    """The row of the table for `error`; `resumable`: what ran has a --resume to go on with."""
    if isinstance(error, Interrupted | KeyboardInterrupt):
        remedy = getattr(error, "remedy", "Run the same command again.")
        return Explanation(str(error) or "interrupted", remedy, INTERRUPTED)
    if isinstance(error, SeveralRefused):
        parts = tuple(explain(one, resumable=resumable) for one in error.errors)
        return Explanation(str(error), error.remedy, USAGE, parts=parts)
    if isinstance(error, UsageError):
        return Explanation(str(error), error.remedy, USAGE)
    if isinstance(error, DsparkError):
        return Explanation(str(error), error.remedy, FAILURE)
    if _raised_by_arrays(error):
        return Explanation(str(error), getattr(error, "remedy", ""), FAILURE)
    if isinstance(error, PARSER_ERROR):
        return _explain_parser_error(error)
    if isinstance(error, BrokenPipeError):
        remedy = "Result files are not affected; --resume goes on." if resumable else "Run it again, and read it all."
        return Explanation("the reader of the output closed its pipe", remedy, FAILURE)
    if isinstance(error, OSError):
        return _explain_os_error(error, resumable=resumable)
    if isinstance(error, MemoryError):
        return Explanation("out of memory", "Lower --concurrency, or use a narrower --dtype.", FAILURE)
    # torch is not imported for this: if it raised, its class has this name.
    if type(error).__name__ == "OutOfMemoryError":
        return Explanation("the GPU is out of memory", "Lower --concurrency, or use a narrower --dtype.", FAILURE)
    if isinstance(error, ModuleNotFoundError):
        return Explanation(
            f"the Python package {error.name!r} is missing", "Install dspark again, with its dependencies.", FAILURE
        )
    return Explanation(
        f"unexpected {type(error).__name__}: {error}",
        "This is a fault of dspark: please report it with the lines above.",
        FAILURE,
        trace="".join(traceback.format_exception(error)),
    )


def _explain_parser_error(error: Exception) -> Explanation:
    param = getattr(error, "param", None)
    no_number = _NO_NUMBER.search(getattr(error, "message", ""))
    if param is not None and no_number is not None:
        kind = "whole number" if no_number[1].startswith("int") else "number"
        return Explanation(f"{param.opts[0]} is no {kind}", f"Give a {kind}.", USAGE)
    ctx = getattr(error, "ctx", None)
    command = ctx.command_path if ctx is not None else "dspark"
    message = error.format_message().rstrip(".")  # type: ignore[attr-defined]
    return Explanation(message, f"`{command} --help` lists what there is.", USAGE)


def _raised_by_arrays(error: BaseException) -> bool:
    """Is it an error of the array packages? They load numpy, so they are not imported to find out."""
    for module, name in _ARRAY_ERRORS:
        kind = getattr(sys.modules.get(module), name, None)
        if kind is not None and isinstance(error, kind):
            return True
    return False


def _explain_os_error(error: OSError, *, resumable: bool) -> Explanation:
    where = f" ({error.filename})" if error.filename else ""
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        again = "run it again with --resume" if resumable else "run it again"
        return Explanation(f"no space is left to write to{where}", f"Free some space, then {again}.", FAILURE)
    again = "run it again; rows already done go on with --resume" if resumable else "run it again"
    return Explanation(f"{error.strerror or error}{where}", f"Mend that, then {again}.", FAILURE)
