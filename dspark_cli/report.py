"""`dspark report`: what the artefacts of one or several runs show, as a page, figures and numbers."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dspark.cli import options
from dspark.cli.errors import Interrupted
from dspark.engine.errors import UsageError
from dspark.engine.jobs.workdir_names import DEFAULT_WORKDIR, REPORT

if TYPE_CHECKING:
    from dspark.cli.output import Sink
    from dspark.engine.report.job import Report


def report(
    ctx: typer.Context,
    runs: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="FOLDER",
            help="Work directories to report on, side by side if several; of one, the report goes into it unless "
            "--workdir or --output is given. Default: the one of --workdir.",
            show_default=False,
        ),
    ] = None,
    output: options.ReportFolder = None,
    workdir: options.Workdir = DEFAULT_WORKDIR,
    seed: Annotated[
        int,
        typer.Option(
            metavar="NUMBER",
            help="Seed of resampled blocks, null ECEs and random splits, from 0 up.",
            rich_help_panel=options.GENERAL,
        ),
    ] = 0,
    config: options.Config = None,
    json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Show what profile, calibration, traces and decoded files say, and whether scheduled verification pays.

    Reads whichever of profile.json, calibration.json, traces.parquet and decode.metrics.json there are; what is missing
    is named in the report, with the command that makes it. Writes index.html, one page that needs no other file, each
    figure as PNG and SVG, and their numbers as summary.json. No model is loaded.

    Exit codes: 0 done, 1 failure, 2 usage, 130 interrupted.
    """
    sink: Sink = ctx.obj
    sink.configure(json=json, quiet=quiet)
    if seed < 0:
        raise UsageError(f"--seed is {seed}", "Give a whole number of at least 0.")
    runs = runs or [workdir]
    if output is None:
        # The report of one run belongs to it, unless a place for files was named.
        output = (runs[0] if len(runs) == 1 and workdir == DEFAULT_WORKDIR else workdir) / REPORT
    made = _make(sink, runs, output, seed)
    _render(made, output, sink)


def _make(sink: Sink, folders: list[Path], output: Path, seed: int) -> Report:
    with sink.progress() as progress:
        try:
            progress.step("Starting")
            from dspark.engine.jobs.output_places import check_folder
            from dspark.engine.report.job import make_report, save_report
            from dspark.engine.report.run import load_runs

            runs = load_runs(folders)
            # Before what takes time, and only once there is something to report on.
            check_folder(output, flag="--output")
            made = make_report(runs, seed=seed, progress=progress.step)
        except KeyboardInterrupt:
            raise Interrupted("interrupted", f"A report in {output} is still the one before: run it again.") from None
    save_report(made, output)
    return made


def _render(made: Report, output: Path, sink: Sink) -> None:
    from dspark.engine.report.job import PAGE, SUMMARY

    page, summary = output / PAGE, output / SUMMARY
    sink.document({"command": "report", "page": str(page), "summary": str(summary), **made.summary})
    rows: list[tuple[str, str]] = []
    runs: list[dict[str, Any]] = made.summary["runs"]
    for run in runs:
        prefix = f"{run['run']}: " if len(runs) > 1 else ""
        rows.append((f"{prefix}figures", ", ".join(run["figures"]) or "none"))
        rows += [(f"{prefix}missing", line) for line in _missing(run["missing"])]
        sentences = [run["undecided"]] if run["verdict"] is None else run["verdict"]["sentences"]
        rows += [(f"{prefix}verdict", sentence) for sentence in sentences]
    sink.table("report", [*rows, ("page", str(page)), ("numbers", str(summary))])


def _missing(entries: list[dict[str, str]]) -> list[str]:
    """A line for each reason, with the figures that it keeps from being made."""
    names: dict[str, list[str]] = {}
    for entry in entries:
        names.setdefault(f"{entry['reason']} {entry['remedy']}", []).append(entry["name"])
    return [f"{', '.join(figures)}: {why}" for why, figures in names.items()]
