"""`dspark`: the commands, and the one place where they start and end."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Sequence
from importlib import metadata
from typing import Annotated

import typer
from typer.main import get_command

from dspark.cli.decode import decode
from dspark.cli.errors import explain
from dspark.cli.output import Sink
from dspark.cli.profile import profile
from dspark.cli.report import report

app = typer.Typer(
    name="dspark",
    add_completion=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command()(decode)
app.command()(profile)
app.command()(report)


def _show_version(value: bool) -> None:
    if value:
        print(f"dspark {metadata.version('dspark')}")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def _dspark(
    ctx: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """DSpark speculative decoding: offline batch generation with a drafter that the target verifies."""
    if ctx.invoked_subcommand is None:
        print(ctx.get_help())


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code; what went wrong is on stderr as a sentence."""
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
        with command.make_context("dspark", arguments, obj=sink) as ctx:
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


def _replace_closed_streams() -> None:
    """Let what goes to a closed stdout or stderr vanish. A closed stdin stays None."""
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            # This takes the lowest free number, which a result file would get otherwise, and other libraries' output.
            os.open(os.devnull, os.O_RDWR)
    if sys.stdout is None:
        sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115 - open until the process ends
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115 - open until the process ends


if __name__ == "__main__":
    sys.exit(main())
