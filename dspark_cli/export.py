"""`dspark export`: profile and calibration as the files of other engines."""

from __future__ import annotations

import os
import re
from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dspark.cli import options
from dspark.engine.errors import UsageError
from dspark.engine.jobs.workdir_names import CALIBRATION, DEFAULT_WORKDIR, EXPORT, PROFILE

if TYPE_CHECKING:
    from dspark.calibration import Calibration
    from dspark.cli.output import Sink
    from dspark.engine.jobs.export import Export
    from dspark.profiles import Profile


def export(
    ctx: typer.Context,
    to: Annotated[
        str | None,
        typer.Option(
            metavar="sglang|tensorrt-llm|vllm|deepinfer",
            help="Engine that shall read the files. Required.",
            show_default=False,
            rich_help_panel=options.FILES,
        ),
    ] = None,
    profile_name: Annotated[
        str | None,
        typer.Option(
            "--profile",
            metavar="FILE|NAME",
            help="Step curve: a file, or one that comes with dspark (`h200-smollm2-135m`, `h200-qwen3-4b`). Default: "
            "profile.json in the work directory, if it is there.",
            show_default=False,
            rich_help_panel=options.FILES,
        ),
    ] = None,
    calibration_file: Annotated[
        Path | None,
        typer.Option(
            "--calibration",
            metavar="FILE",
            help="Temperatures. Default: calibration.json in the work directory, if it is there.",
            show_default=False,
            rich_help_panel=options.FILES,
        ),
    ] = None,
    output: options.ExportFolder = None,
    workdir: options.Workdir = DEFAULT_WORKDIR,
    scope: Annotated[
        str,
        typer.Option(
            metavar="round|target",
            help="What step times are of: the whole round (target, draft, verification) or the target's forward alone.",
            rich_help_panel=options.FILES,
        ),
    ] = "round",
    config: options.Config = None,
    json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Write what other engines read: step times looked up by their own rules, and confidence temperatures.

    Exit codes: 0 done, 1 failure, 2 usage.
    """
    sink: Sink = ctx.obj
    sink.configure(json=json, quiet=quiet)
    from dspark.engine.jobs.export import ENGINES, Source, export_for, save
    from dspark.engine.jobs.output_places import check_folder

    if to not in ENGINES:
        given = "export needs --to" if to is None else f"--to is {to!r}"
        raise UsageError(given, f"Choose one of: {', '.join(ENGINES)}. For example: dspark export --to sglang")
    if scope not in ("round", "target"):
        raise UsageError(f"--scope is {scope!r}", "Choose one of: round, target.")
    source = Source(
        profile=_profile(profile_name, workdir / PROFILE),
        calibration=_calibration(calibration_file, workdir / CALIBRATION),
        scope=scope,
    )
    made = export_for(to, source)
    folder = output or workdir / EXPORT
    check_folder(folder, flag="--output")
    there_before = {name for name in made.files if os.path.lexists(folder / name)}
    paths = save(made, folder)
    _render(to, made, paths, sink, there_before=there_before)


def _profile(named: str | None, default: Path) -> Profile | None:
    from dspark.profiles import find_profile

    return find_profile(named or str(default)) if named is not None or os.path.lexists(default) else None


def _calibration(named: Path | None, default: Path) -> Calibration | None:
    from dspark.calibration import load_calibration

    return load_calibration(named or default) if named is not None or os.path.lexists(default) else None


def _render(engine: str, made: Export, paths: list[Path], sink: Sink, *, there_before: Collection[str]) -> None:
    places = {path.name: str(path) for path in paths}
    settings = [re.sub(r"\{([^}]+)\}", lambda match: places[match[1]], setting) for setting in made.settings]
    sink.document(
        {
            "command": "export",
            "to": engine,
            "files": list(places.values()),
            "settings": settings,
            "notes": made.notes,
        }
    )
    rows = [("replaced" if name in there_before else "file", place) for name, place in places.items()]
    sink.table(f"export for {engine}", rows)
    for setting in settings:
        sink.note(f"  {setting}")
    for note in made.notes:
        sink.note(note)
