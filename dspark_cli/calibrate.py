"""`dspark calibrate`: rounds of decoded prompts, or recorded ones, in; one temperature a draft position out."""

from __future__ import annotations

import importlib.resources
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dspark.cli import options
from dspark.cli.calibration_table import render
from dspark.cli.errors import ERROR_ROWS, Interrupted, flags_named
from dspark.engine.errors import UsageError
from dspark.engine.models.aliases import DEFAULT_TARGET, NO_DRAFTER, drafter_for

if TYPE_CHECKING:
    from dspark.calibration import Calibration, TemperatureGrid, Traces
    from dspark.cli.output import Sink
    from dspark.cli.progress import Reporter
    from dspark.engine.config import EngineConfig
    from dspark.engine.jobs.tokenizer import Tokenizer
    from dspark.engine.jobs.trace_job import TraceJob
    from dspark.engine.requests import SamplingParams

FITTING = "Fitting"


@dataclass(frozen=True, slots=True)
class _Recording:
    """What is to be decoded for its rounds, and where they go."""

    config: EngineConfig
    sampling: SamplingParams
    input: str  # a file, `-`, or nothing for the prompts that come with dspark
    traces: Path

    @property
    def rest(self) -> Path:
        """Where the rounds of a run go that did not finish."""
        return self.traces.with_name("traces.partial.parquet")


@dataclass(frozen=True, slots=True)
class _Rounds:
    """Rounds to calibrate on, the files that hold them, and the rows that gave none."""

    traces: Traces
    files: tuple[Path, ...]
    errors: tuple[str, ...] = ()


def calibrate(
    ctx: typer.Context,
    more_traces: Annotated[
        list[Path] | None,
        typer.Argument(metavar="FILE", help="Further files for --traces.", show_default=False),
    ] = None,
    input_file: Annotated[
        str | None,
        typer.Option(
            "--input",
            "-i",
            metavar="FILE|-",
            help="JSONL of prompts to decode, as `decode` reads it; a field `dataset` names a row's data set. "
            "Default: 160 prompts that come with dspark.",
            show_default=False,
            rich_help_panel=options.FILES,
        ),
    ] = None,
    traces: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="FILE...",
            help="Recorded rounds in place of decoding: .parquet or .csv of dspark, .pt shards of SGLang. No model is "
            "loaded.",
            show_default=False,
            rich_help_panel=options.FILES,
        ),
    ] = None,
    workdir: options.Workdir = Path("dspark-out"),
    method: Annotated[
        str,
        typer.Option(
            metavar="sts|joint|nll",
            help="`sts`: left to right, each temperature by the calibration error of survival; `joint`: all of them "
            "together; `nll`: each by likelihood.",
            rich_help_panel=FITTING,
        ),
    ] = "sts",
    bins: Annotated[
        int, typer.Option(min=1, help="Bins of equal width for the calibration error.", rich_help_panel=FITTING)
    ] = 20,
    grid: Annotated[
        str,
        typer.Option(
            metavar="LOW,HIGH,POINTS",
            help="Temperatures that are tried first, at equal ratios; the search goes on around the best.",
            rich_help_panel=FITTING,
        ),
    ] = "0.1,10,61",
    holdout: Annotated[
        float,
        typer.Option(
            help="Share of the requests kept from the fit, to measure on, from 0 to below 1.", rich_help_panel=FITTING
        ),
    ] = 0.3,
    seed: Annotated[
        int,
        typer.Option(min=0, help="Seed of rows that bring none, and of what is held out.", rich_help_panel=FITTING),
    ] = 0,
    target: options.Target = DEFAULT_TARGET,
    drafter: options.Drafter = None,
    device: options.Device = "auto",
    dtype: options.Dtype = "auto",
    acceptance: options.Acceptance = "rejection",
    concurrency: options.Concurrency = None,
    max_tokens: options.MaxTokens = 256,
    temperature: options.Temperature = 0.0,
    top_p: options.TopP = 1.0,
    top_k: options.TopK = 0,
    ignore_eos: options.IgnoreEos = False,
    config: options.Config = None,
    json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Calibrate the drafter's confidence: one temperature a draft position.

    Decodes prompts with every drafted token verified, and fits on some requests what it then measures on the others.
    A calibration holds for one way of sampling: give the --temperature, --top-p and --top-k that you will decode with.
    Writes traces.parquet (unless --traces) and calibration.json into the work directory; both are replaced.

    Exit codes: 0 done, 1 failure, 2 usage, 3 done but some rows could not be decoded, 130 interrupted.
    """
    sink: Sink = ctx.obj
    sink.configure(json=json, quiet=quiet)
    recorded = (*(traces or ()), *(more_traces or ()))
    if more_traces and not traces:
        raise UsageError(f"{more_traces[0]} belongs to no option", "Trace files follow --traces, prompts --input.")
    if recorded and input_file is not None:
        raise UsageError("--traces and --input exclude each other", "Calibrate recorded rounds, or decode prompts.")
    from dspark.calibration import METHODS
    from dspark.engine.config import EngineConfig
    from dspark.engine.jobs.results import check_document, check_folder
    from dspark.engine.requests import SamplingParams

    if method not in METHODS:
        raise UsageError(f"--method is {method!r}", f"Choose one of: {', '.join(METHODS)}.")
    if not 0 <= holdout < 1:
        raise UsageError(f"--holdout is {holdout}", "Give a share from 0 to below 1.")
    candidates = _grid(grid)
    with flags_named(ctx):
        engine_config = EngineConfig(
            target=target,
            drafter=drafter,
            device=device,
            dtype=dtype,
            acceptance=acceptance,
            concurrency=concurrency,
            seed=seed,
        )
        sampling = SamplingParams(
            temperature=temperature, top_k=top_k, top_p=top_p, max_tokens=max_tokens, ignore_eos=ignore_eos
        )
    document = workdir / "calibration.json"
    check_folder(workdir, flag="--workdir")
    check_document(document, flag="--workdir")
    if recorded:
        rounds = _read(recorded)
    else:
        recording = _Recording(engine_config, sampling, input_file or "", workdir / "traces.parquet")
        check_document(recording.traces, flag="--workdir")
        rounds = _record(ctx, recording)
    made = _fit(rounds, document, method=method, bins=bins, grid=candidates, holdout=holdout, seed=seed)
    render(made, sink, calibration=document, traces=rounds.files, errors=rounds.errors)
    if rounds.errors:
        raise typer.Exit(ERROR_ROWS)


def _grid(text: str) -> TemperatureGrid:
    from dspark.calibration import CalibrationError, TemperatureGrid

    try:
        low, high, points = text.split(",")
        return TemperatureGrid(float(low), float(high), int(points))
    except CalibrationError as error:
        raise UsageError(f"--grid is {text!r}: {error}", error.remedy) from None
    except ValueError:
        raise UsageError(f"--grid is {text!r}, not three numbers", "Write, say, --grid 0.1,10,61.") from None


def _read(files: tuple[Path, ...]) -> _Rounds:
    from dspark.calibration import read_traces

    return _Rounds(read_traces(files), files)


def _record(ctx: typer.Context, recording: _Recording) -> _Rounds:
    """Decode, and save the rounds; those of a run that ends early too, under another name."""
    from dspark.calibration import write_traces

    sink: Sink = ctx.obj
    config = recording.config
    if drafter_for(config.target, config.drafter) == NO_DRAFTER:
        raise UsageError(f"the target {config.target} has no drafter to calibrate", "Name one with --drafter.")
    job: TraceJob | None = None
    with sink.progress() as progress:
        try:
            job, tokenizer = _load(ctx, recording, progress)
            job.run(tokenizer, progress)
        except BaseException as error:
            kept = _save_rest(job, recording)
            if isinstance(error, KeyboardInterrupt):
                raise Interrupted("interrupted", kept or "No round was recorded yet: run it again.") from None
            if kept:
                progress.close()
                sink.note(kept)
            raise
    traces = job.traces()
    if not len(traces):
        raise UsageError(
            "no row gave a round to calibrate on",
            f"The first reason: {job.errors[0]}" if job.errors else "Give prompts.",
        )
    write_traces(traces, recording.traces)
    return _Rounds(traces, (recording.traces,), tuple(job.errors))


def _load(ctx: typer.Context, recording: _Recording, progress: Reporter) -> tuple[TraceJob, Tokenizer | None]:
    from dspark.engine.jobs.input_file import open_input
    from dspark.engine.models.resolve import resolve_drafter, resolve_target

    progress.step("Starting")
    builtin = str(importlib.resources.files("dspark.calibration").joinpath("prompts.jsonl"))
    rows = open_input(recording.input or builtin)
    config = recording.config
    drafter_name = drafter_for(config.target, config.drafter)
    target = resolve_target(config.target, progress=progress.step)
    drafter = resolve_drafter(drafter_name, progress=progress.step)
    from dspark.engine import Engine
    from dspark.engine.jobs.tokenizer import Tokenizer
    from dspark.engine.jobs.trace_job import ModelNames, TraceJob

    progress.step("Loading the tokenizer")
    tokenizer = Tokenizer.load(target)
    progress.step("Loading the models")
    with flags_named(ctx):
        engine = Engine(replace(config, target=str(target), drafter=str(drafter)), detokenizer=tokenizer)
    job = TraceJob(
        engine,
        rows,
        names=ModelNames(config.target, drafter_name),
        sampling=recording.sampling,
        dataset="" if rows.path is None else rows.path.name.split(".")[0],
    )
    return job, tokenizer


def _save_rest(job: TraceJob | None, recording: _Recording) -> str:
    """Keep the rounds of a run that ended early; what there is of them, in words."""
    from dspark.calibration import write_traces

    traces = None if job is None else job.traces()
    if not traces:
        return ""
    write_traces(traces, recording.rest)
    return (
        f"{len(traces):,} rounds recorded so far are in {recording.rest}; "
        f"`dspark calibrate --traces {recording.rest}` calibrates on them."
    )


def _fit(rounds: _Rounds, document: Path, **settings: Any) -> Calibration:
    from dspark.calibration import calibrate, save_calibration

    made = calibrate(rounds.traces, trace_names=[str(file) for file in rounds.files], **settings)
    save_calibration(made, document)
    return made
