"""`dspark calibrate`: rounds of decoded prompts, or recorded ones, in; one temperature a draft position out."""

from __future__ import annotations

import importlib.resources
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dspark.cli import options
from dspark.cli.calibration_result import Source, render
from dspark.cli.errors import ERROR_ROWS, Interrupted, Refusals
from dspark.cli.loading import Models, check_fit, check_machine, load_engine, load_workers, resolve_models
from dspark.engine.errors import UsageError
from dspark.engine.jobs.workdir_names import CALIBRATION, DEFAULT_WORKDIR, PARTIAL_TRACES, TRACES
from dspark.engine.models.aliases import DEFAULT_TARGET, NO_DRAFTER, drafter_for

if TYPE_CHECKING:
    from dspark.calibration import TemperatureGrid, Traces
    from dspark.cli.output import Sink
    from dspark.engine.cluster.workers import Workers
    from dspark.engine.config import EngineConfig
    from dspark.engine.jobs.row_traces import RowTraces
    from dspark.engine.requests import SamplingParams

FITTING = "Fitting"


@dataclass(frozen=True, slots=True)
class _Recording:
    """What is to be decoded for its rounds, and where they go."""

    config: EngineConfig
    sampling: SamplingParams
    input: str  # a file, `-`, or nothing for the prompts that come with dspark
    traces: Path
    workers: Workers | None = None

    @property
    def rest(self) -> Path:
        """Where the rounds of a run go that did not finish."""
        return self.traces.with_name(PARTIAL_TRACES)


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
            "loaded. Default: decode prompts.",
            show_default=False,
            rich_help_panel=options.FILES,
        ),
    ] = None,
    workdir: options.Workdir = DEFAULT_WORKDIR,
    overwrite: options.ReplaceOthers = False,
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
        int,
        typer.Option(metavar="COUNT", help="Bins of equal width for the calibration error.", rich_help_panel=FITTING),
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
            metavar="SHARE",
            help="Share of the requests kept from the fit, to measure on, from 0 to below 1.",
            rich_help_panel=FITTING,
        ),
    ] = 0.3,
    seed: Annotated[
        int,
        typer.Option(
            metavar="NUMBER",
            help="Seed of rows that bring none, and of what is held out, from 0 up.",
            rich_help_panel=FITTING,
        ),
    ] = 0,
    target: options.Target = DEFAULT_TARGET,
    drafter: options.Drafter = None,
    device: options.Device = "auto",
    dtype: options.Dtype = "auto",
    acceptance: options.Acceptance = "rejection",
    draft_top_k: options.DraftTopK = None,
    concurrency: options.Concurrency = None,
    max_tokens: options.MaxTokens = 256,
    temperature: options.Temperature = 0.0,
    top_p: options.TopP = 1.0,
    top_k: options.TopK = 0,
    ignore_eos: options.IgnoreEos = False,
    num_workers: options.NumWorkers = None,
    ray: options.RayAddress = None,
    config: options.Config = None,
    json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Calibrate the drafter's confidence: one temperature a draft position.

    Decodes prompts with every drafted token verified, and fits on some requests what it then measures on the others.
    A calibration holds for one way of sampling: give the --temperature, --top-p, --top-k and --draft-top-k that you
    will decode with.
    Writes traces.parquet (unless --traces) and calibration.json into the work directory; those of the same models are
    replaced.

    Exit codes: 0 done, 1 failure, 2 usage, 3 done but some rows could not be decoded, 130 interrupted.
    """
    sink: Sink = ctx.obj
    sink.configure(json=json, quiet=quiet)
    from dspark.calibration import METHODS, MOST_BINS, read_traces, save_calibration
    from dspark.calibration import calibrate as fit
    from dspark.engine.cluster.workers import Workers
    from dspark.engine.config import EngineConfig
    from dspark.engine.jobs.output_places import check_document, check_folder
    from dspark.engine.jobs.pair_files import NamedPair, check_replaced
    from dspark.engine.requests import SamplingParams

    refusals = Refusals(ctx)
    recorded = (*(traces or ()), *(more_traces or ()))
    with refusals.collected():
        if more_traces and not traces:
            raise UsageError(f"{more_traces[0]} belongs to no option", "Trace files follow --traces, prompts --input.")
        if recorded and input_file is not None:
            raise UsageError("--traces and --input exclude each other", "Calibrate recorded rounds, or decode prompts.")
    with refusals.collected():
        if method not in METHODS:
            raise UsageError(f"--method is {method!r}", f"Choose one of: {', '.join(METHODS)}.")
    with refusals.collected():
        if not 0 <= holdout < 1:
            raise UsageError(f"--holdout is {holdout}", "Give a share from 0 to below 1.")
    with refusals.collected():
        if not 1 <= bins <= MOST_BINS:
            raise UsageError(f"--bins is {bins}", f"Give a whole number from 1 to {MOST_BINS}.")
    with refusals.collected():
        if seed < 0:
            raise UsageError(f"--seed is {seed}", "Give a whole number of at least 0.")
    candidates = refusals.made(_grid, grid)
    engine_config = refusals.made_each(
        EngineConfig,
        target=target,
        drafter=drafter,
        device=device,
        dtype=dtype,
        acceptance=acceptance,
        draft_top_k=draft_top_k,
        concurrency=concurrency,
        seed=seed,
    )
    sampling = refusals.made_each(
        SamplingParams,
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        max_tokens=max_tokens,
        ignore_eos=ignore_eos,
    )
    workers = refusals.made(Workers.asked, num_workers, ray)
    document, traces_file = workdir / CALIBRATION, workdir / TRACES
    with refusals.collected():
        check_folder(workdir, flag="--workdir")
        for path in (document, traces_file):
            check_document(path, flag="--workdir")
        if not recorded and not overwrite:
            check_replaced([document, traces_file], NamedPair(target, drafter_for(target, drafter)))
    refusals.tell()
    if recorded:
        rounds, source = read_traces(recorded), Source(recorded)
        if not overwrite:
            check_replaced([document], NamedPair(rounds.provenance.target, rounds.provenance.drafter))
    else:
        rounds, source = _record(ctx, _Recording(engine_config, sampling, input_file or "", traces_file, workers))
    made = fit(
        rounds,
        method,
        bins=bins,
        grid=candidates,
        holdout=holdout,
        seed=seed,
        trace_names=[str(file) for file in source.files],
    )
    save_calibration(made, document)
    render(made, source, sink, calibration=document)
    if source.num_errors:
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


def _record(ctx: typer.Context, recording: _Recording) -> tuple[Traces, Source]:
    """Decode and save the rounds; of a run that ends early, those until then under another name."""
    from dspark.calibration import write_traces
    from dspark.engine.jobs.input_file import open_input
    from dspark.engine.jobs.trace_file import TraceFile

    sink: Sink = ctx.obj
    config = recording.config
    name = drafter_for(config.target, config.drafter)
    if name == NO_DRAFTER:
        raise UsageError(f"the target {config.target} has no drafter to calibrate", "Name one with --drafter.")
    builtin = importlib.resources.files("dspark.calibration").joinpath("prompts.jsonl")
    rows = open_input(recording.input or str(builtin))
    traces: RowTraces | None = None
    with sink.decode_progress() as progress:
        try:
            progress.step("Starting")
            check_machine(ctx, config, recording.workers)
            models = _verifying_all(resolve_models(config, progress))
            check_fit(ctx, models)
            load = load_engine if recording.workers is None else partial(load_workers, workers=recording.workers)
            engine, tokenizer = load(ctx, models, progress=progress)
            from dspark.engine.jobs.row_traces import RowTraces
            from dspark.engine.jobs.trace_job import record_rows

            traces = RowTraces(engine, TraceFile(recording.traces, config.target, name), dataset=rows.dataset)
            summary = record_rows(engine, tokenizer, rows, recording.sampling, traces=traces, progress=progress)
        except BaseException as error:
            kept = _keep(traces, recording.rest)
            if isinstance(error, KeyboardInterrupt):
                raise Interrupted("interrupted", kept or "No round was recorded yet: run it again.") from None
            if kept:
                progress.close()
                sink.note(kept)
            raise
    rounds = traces.collected()
    errors = [error for _, error in summary.first_errors]
    if not len(rounds):
        raise UsageError("the rows gave no round to calibrate on", f"The first error: {errors[0]}" if errors else "")
    write_traces(rounds, recording.traces)
    return rounds, Source((recording.traces,), rows.num_rows, summary.whole_file.error, tuple(errors))


def _verifying_all(models: Models) -> Models:
    """With the policy that has every drafted token verified, so that no choice of a policy shows in the rounds."""
    from dspark.engine.preflight import block_size_of

    assert models.drafter is not None, "no drafter at all was refused before"
    return replace(models, config=replace(models.config, policy=f"fixed:{block_size_of(models.drafter)}"))


def _keep(traces: RowTraces | None, path: Path) -> str:
    """Save the rounds of a run that ended early; says where they are."""
    from dspark.calibration import write_traces

    rounds = None if traces is None else traces.collected()
    if not rounds:
        return ""
    write_traces(rounds, path)
    return f"{len(rounds):,} rounds are in {path}: `dspark calibrate --traces {path}` calibrates on them."
