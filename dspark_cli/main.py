"""`dspark`: the commands, and the one place where they start and end."""

from __future__ import annotations

import inspect
import io
import os
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import metadata
from types import FrameType
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command

from dspark.cli import options
from dspark.cli.calibrate import calibrate
from dspark.cli.config_file import file_named
from dspark.cli.decode import decode
from dspark.cli.errors import explain
from dspark.cli.export import export
from dspark.cli.inspect import inspect as inspect_checkpoint
from dspark.cli.output import Sink
from dspark.cli.profile import profile
from dspark.cli.report import report
from dspark.cli.selftest import selftest
from dspark.cli.train import train


class _TidyHelp:
    """Shows no value for --help, and lists it with the other general options."""

    def get_help_option(self, ctx: Any) -> Any:
        option: Any = super().get_help_option(ctx)  # type: ignore[misc]
        if option is not None:
            option.metavar = options.NO_VALUE
            option.rich_help_panel = options.GENERAL
        return option


class _Command(_TidyHelp, TyperCommand):
    """A command whose help flows: a paragraph is as wide as the screen."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        paragraphs = inspect.cleandoc(self.help or "").split("\n\n")
        self.help = "\n\n".join(paragraph.replace("\n", " ") for paragraph in paragraphs)
        for param in self.params:
            if param.param_type_name == "argument":
                # The parser shows an argument's type beside its metavariable; of an option only one of the two.
                setattr(param, "display_type_rich", lambda ctx: None)  # noqa: B010 - older releases lack the method


class _Group(_TidyHelp, TyperGroup):
    """All the commands."""


app = typer.Typer(
    name="dspark",
    cls=_Group,
    add_completion=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command(cls=_Command)(decode)
app.command(cls=_Command)(profile)
app.command(cls=_Command)(calibrate)
app.command(cls=_Command)(report)
app.command(cls=_Command)(export)
app.command("inspect", cls=_Command)(inspect_checkpoint)
app.command(cls=_Command)(train)
app.command(cls=_Command)(selftest)


def _show_version(value: bool) -> None:
    if value:
        print(f"dspark {metadata.version('dspark')}")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def _dspark(
    ctx: typer.Context,
    version: Annotated[
        bool,
        typer.Option(
            "--version",
            metavar=options.NO_VALUE,
            callback=_show_version,
            is_eager=True,
            help="Print the version and exit.",
            rich_help_panel=options.GENERAL,
        ),
    ] = False,
) -> None:
    """DSpark speculative decoding: offline batch generation with a drafter that the target verifies."""
    if ctx.invoked_subcommand is None:
        print(ctx.get_help())


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code; what went wrong is on stderr as a sentence.

    Args:
        argv: None: the process's own, which ends with this command; a termination can no longer change its exit code.
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    _replace_closed_streams()
    if isinstance(sys.stdout, io.TextIOWrapper):
        # Help holds Greek letters, which a narrow locale cannot spell.
        sys.stdout.reconfigure(errors="backslashreplace")
    # Errors can come before the flags are parsed, and must be shown as asked all the same.
    sink = Sink(json="--json" in arguments, quiet="--quiet" in arguments)
    try:
        command = get_command(app)
        # Not `app()`: it would print and exit in its own ways, and turn an interrupt into a bare exit code.
        with (
            _termination_interrupts(ends_process=argv is None),
            command.make_context("dspark", arguments, obj=sink) as ctx,
            file_named(ctx),
        ):
            command.invoke(ctx)
        sink.flush()
        return 0
    except typer.Exit as stop:
        try:
            sink.flush()
        except OSError as error:
            return sink.failure(explain(error, resumable=sink.resumable))
        return stop.exit_code
    except (Exception, KeyboardInterrupt) as error:
        return sink.failure(explain(error, resumable=sink.resumable))


@contextmanager
def _termination_interrupts(*, ends_process: bool) -> Iterator[None]:
    """Have a termination end a command as Ctrl-C does: what it has is kept, and said.

    Args:
        ends_process: nothing follows the command but the interpreter's exit, which takes long after large imports. A
            termination meanwhile would have a command that is done look like one that was ended.
    """
    # Whoever handles or ignores it already has a reason to.
    mine = threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGTERM) == signal.SIG_DFL

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    if mine:
        signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        if mine:
            signal.signal(signal.SIGTERM, signal.SIG_IGN if ends_process else signal.SIG_DFL)


def _replace_closed_streams() -> None:
    """Let what goes to a closed stdout or stderr vanish. A closed stdin stays None."""
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            # This takes the lowest free number, which a result file would get otherwise, and other libraries' output.
            os.open(os.devnull, os.O_RDWR)
    if sys.stdout is None:
        sys.stdout = open(os.devnull, "w", encoding="utf-8", errors="replace")  # noqa: SIM115 - open until the process ends
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w", encoding="utf-8", errors="replace")  # noqa: SIM115 - open until the process ends


if __name__ == "__main__":
    sys.exit(main())
