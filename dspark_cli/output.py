"""The one output sink: sentences and tables for people on stderr, one JSON document for programs on stdout."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from dspark.engine.jobs import strict_json

if TYPE_CHECKING:
    from rich.console import Console

    from dspark.cli.decode_progress import DecodeReporter
    from dspark.cli.errors import Explanation
    from dspark.cli.profile_progress import ProfileReporter
    from dspark.cli.progress import Reporter
    from dspark.cli.train_progress import TrainReporter


class Sink:
    """Where a command's words go.

    Args:
        json: print one strict JSON document on stdout, a failure included.
        quiet: nothing on stderr but errors.

    `resumable` says whether a failure may point to --resume; the command sets it.
    """

    def __init__(self, *, json: bool, quiet: bool) -> None:
        self._json = json
        self._quiet = quiet
        self._console: Console | None = None
        self.resumable = False

    def configure(self, *, json: bool, quiet: bool) -> None:
        """Take over what the flags and the configuration file say."""
        self._json, self._quiet = json, quiet

    @property
    def console(self) -> Console:
        """Rich on stderr; it honours NO_COLOR and writes no escapes to a file."""
        if self._console is None:
            from rich.console import Console

            self._console = Console(stderr=True, highlight=False, markup=False, soft_wrap=True)
        return self._console

    @property
    def for_people(self) -> bool:
        """Is a person there to read more than the result: neither quiet nor with JSON for a program."""
        return not (self._quiet or self._json)

    def note(self, text: str) -> None:
        """Something a person should know; nothing when quiet."""
        if not self._quiet:
            print(text, file=sys.stderr, flush=True)

    def alert(self, text: str, details: Sequence[str] = ()) -> None:
        """What must be said even when quiet, as one line; the details only when not."""
        print(f"dspark: {text}", file=sys.stderr)
        for line in details:
            self.note(f"  {line}")

    def table(self, title: str, rows: Sequence[tuple[str, str]]) -> None:
        """A two-column table."""
        if self._quiet:
            return
        from rich.table import Table
        from rich.text import Text

        table = Table(title=title, show_header=False, title_justify="left")
        for name, value in rows:
            table.add_row(Text(name), Text(value, overflow="fold"))
        self.console.print(table, soft_wrap=False)

    def grid(self, title: str, headers: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        """A table of numbers under headers."""
        if self._quiet:
            return
        from rich.table import Table

        table = Table(title=title, title_justify="left")
        for header in headers:
            table.add_column(header, justify="right")
        for row in rows:
            table.add_row(*row)
        self.console.print(table, soft_wrap=False)

    def document(self, document: Mapping[str, Any]) -> None:
        """The command's result for programs."""
        if self._json:
            # JSON is UTF-8 whatever the locale says.
            sys.stdout.flush()
            sys.stdout.buffer.write(strict_json.dumps(document, indent=2) + b"\n")

    def progress(self) -> Reporter:
        """Shows steps with a live bar on a terminal, plain lines elsewhere, nothing when quiet."""
        from dspark.cli.progress import LiveReporter, Reporter

        return LiveReporter(self.console) if self._live else Reporter(self._plain)

    def decode_progress(self) -> DecodeReporter:
        """The same while rows are decoded; the live bar counts rows, tokens and time."""
        from dspark.cli.decode_progress import DecodeReporter, LiveDecodeReporter

        return LiveDecodeReporter(self.console) if self._live else DecodeReporter(self._plain)

    def profile_progress(self) -> ProfileReporter:
        """The same while buckets are measured; the live bar comes with a table of them."""
        from dspark.cli.profile_progress import LiveProfileReporter, ProfileReporter

        return LiveProfileReporter(self.console) if self._live else ProfileReporter(self._plain)

    def train_progress(self) -> TrainReporter:
        """The same while a drafter is trained; the live part holds loss and acceptance."""
        from dspark.cli.train_progress import LiveTrainReporter, TrainReporter

        return LiveTrainReporter(self.console) if self._live else TrainReporter(self._plain)

    @property
    def _live(self) -> bool:
        return not self._quiet and sys.stderr.isatty()

    @property
    def _plain(self) -> Callable[[str], None] | None:
        return None if self._quiet else self.note

    def flush(self) -> None:
        """Write out what stdout still holds, so that a full disk shows now."""
        sys.stdout.flush()

    def failure(self, explanation: Explanation) -> int:
        """Tell a failure and return its exit code."""
        # Whatever is closed or full by now must not turn one sentence into two.
        with suppress(OSError):
            if explanation.trace:
                print(explanation.trace, file=sys.stderr, end="")
            for part in explanation.parts or (explanation,):
                print(f"dspark: {part.message}", file=sys.stderr)
                if part.remedy:
                    print(f"  {part.remedy}", file=sys.stderr)
            sys.stderr.flush()
        try:
            self.document(
                {
                    "error": {"message": explanation.message, "remedy": explanation.remedy},
                    "exit_code": explanation.exit_code,
                }
            )
            sys.stdout.flush()
        except OSError:
            # The interpreter flushes stdout again at exit and would complain about it.
            with suppress(OSError):
                os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return explanation.exit_code
