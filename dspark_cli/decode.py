"""`dspark decode`: a file of prompts in, a file of answers out."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dspark.cli import options
from dspark.cli.artefacts import add_artefacts, used_artefacts
from dspark.cli.decode_result import render
from dspark.cli.errors import ERROR_ROWS, Interrupted, Refusals, flags_named
from dspark.cli.loading import check_machine, load_engine, load_workers, resolve_models
from dspark.engine.errors import UsageError
from dspark.engine.models.aliases import DEFAULT_TARGET, NO_DRAFTER, drafter_for

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from dspark.cli.output import Sink
    from dspark.engine.cluster.workers import Workers
    from dspark.engine.config import EngineConfig
    from dspark.engine.jobs.decode_job import DecodeJob

_EXAMPLE = "For example: dspark decode --input prompts.jsonl"


def decode(
    ctx: typer.Context,
    input_file: Annotated[
        str | None,
        typer.Option(
            "--input",
            "-i",
            metavar="FILE|-",
            help="JSONL, one request a line (prompt, prompt_token_ids, messages, turns, conversations, or OpenAI "
            "Batch); may be gzipped; `-` is stdin. Required.",
            show_default=False,
            rich_help_panel=options.FILES,
        ),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            metavar="FILE",
            help="JSONL, one answer a line, in input order. Default: decode.jsonl in the work directory.",
            show_default=False,
            rich_help_panel=options.FILES,
        ),
    ] = None,
    output_format: options.OutputFormat = "dspark",
    metrics: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="JSON, counts and speeds of the run. Default: beside the output, NAME.metrics.json for NAME.jsonl and "
            "NAME-metrics.json for any other NAME.",
            show_default=False,
            rich_help_panel=options.FILES,
        ),
    ] = None,
    traces: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Record every round for `calibrate` and `report`, as .parquet or .csv; slower. Default: none.",
            show_default=False,
            rich_help_panel=options.FILES,
        ),
    ] = None,
    workdir: options.Workdir = Path("dspark-out"),
    resume: Annotated[
        bool,
        typer.Option(
            "--resume",
            metavar=options.NO_VALUE,
            help="Go on with an interrupted run. Default: refuse what one has left.",
            rich_help_panel=options.FILES,
        ),
    ] = False,
    overwrite: Annotated[
        bool,
        typer.Option(
            "--overwrite",
            metavar=options.NO_VALUE,
            help="Replace an existing output. Default: refuse it.",
            rich_help_panel=options.FILES,
        ),
    ] = False,
    token_ids: Annotated[
        bool,
        typer.Option(
            "--token-ids",
            metavar=options.NO_VALUE,
            help="Add `token_ids` to each output row; with --all-turns those of the last answer. Default: only to rows "
            "that were given as token ids.",
            rich_help_panel=options.FILES,
        ),
    ] = False,
    all_turns: Annotated[
        bool,
        typer.Option(
            "--all-turns",
            metavar=options.NO_VALUE,
            help="Ask every turn of a `turns` row, with the model's own answers in between; `turns` of the output row "
            "holds them all, `text` and `token_ids` the last. Default: ask the first.",
            rich_help_panel=options.DECODING,
        ),
    ] = False,
    target: options.Target = DEFAULT_TARGET,
    drafter: options.Drafter = None,
    device: options.Device = "auto",
    dtype: options.Dtype = "auto",
    policy: options.Policy = None,
    no_adapt: options.NoAdapt = False,
    acceptance: options.Acceptance = "rejection",
    concurrency: options.Concurrency = None,
    max_tokens: options.MaxTokens = 256,
    temperature: options.Temperature = 0.0,
    top_p: options.TopP = 1.0,
    top_k: options.TopK = 0,
    stop: options.Stop = None,
    ignore_eos: options.IgnoreEos = False,
    seed: options.Seed = 0,
    num_workers: options.NumWorkers = None,
    ray: options.RayAddress = None,
    config: options.Config = None,
    json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Decode a JSONL file of prompts.

    A `prompt` is continued as raw text; `messages`, `turns` and `conversations` go through the target's chat template.
    Rows may set max_tokens, temperature, top_p, top_k, seed, stop and ignore_eos for themselves. A row that cannot
    be decoded becomes an error row and stops nothing.

    Exit codes: 0 all rows fine, 1 failure, 2 usage, 3 finished with error rows, 130 interrupted (go on with --resume).
    """
    sink: Sink = ctx.obj
    sink.configure(json=json, quiet=quiet)
    # Before what takes time to import.
    if input_file is None:
        raise UsageError("decode needs --input, a JSONL file with one prompt a line", _EXAMPLE)
    from dspark.engine.cluster.workers import Workers
    from dspark.engine.config import EngineConfig
    from dspark.engine.jobs.decode_job import DecodeJob
    from dspark.engine.jobs.input_file import check_readable, open_input
    from dspark.engine.jobs.output_format import OutputFormat
    from dspark.engine.jobs.output_places import (
        check_document,
        check_folder,
        check_name,
        check_output,
        is_finished,
        metrics_path,
        refuse_both,
    )
    from dspark.engine.jobs.trace_file import TraceFile
    from dspark.engine.requests import SamplingParams
    from dspark.engine.scheduler.policies import parse_policy

    refusals = Refusals()
    with refusals.collected(), flags_named(ctx):
        engine_config = EngineConfig(
            target=target,
            drafter=drafter,
            device=device,
            dtype=dtype,
            policy=policy,
            acceptance=acceptance,
            concurrency=concurrency,
            seed=seed,
            adapt=not no_adapt,
        )
    with refusals.collected(), flags_named(ctx):
        sampling = SamplingParams(
            temperature=temperature,
            top_k=top_k,
            top_p=top_p,
            max_tokens=max_tokens,
            stop=tuple(stop or ()),
            ignore_eos=ignore_eos,
        )
    workers = None
    with refusals.collected(), flags_named(ctx):
        workers = Workers.asked(num_workers, ray)
    with refusals.collected(), flags_named(ctx):
        if policy is not None:
            # A draft length past the drafter's own is refused once the drafter is known.
            parse_policy(policy, 0 if drafter_for(target, drafter) == NO_DRAFTER else None)
    line_format = OutputFormat()
    with refusals.collected(), flags_named(ctx):
        line_format = OutputFormat(output_format, model=target)
    finished = False
    in_workdir, beside_output = output is None, metrics is None
    output = output or workdir / "decode.jsonl"
    metrics = metrics or metrics_path(output)
    with refusals.collected():
        refuse_both(resume=resume, overwrite=overwrite)
        if in_workdir:
            check_folder(workdir, flag="--workdir")
        check_name(output, flag="--output")
        finished = resume and is_finished(output)
        if not finished:
            check_output(output, resume=resume, overwrite=overwrite)
            if beside_output:
                check_document(metrics, flag="--output")
    with refusals.collected():
        if not (finished or beside_output):
            check_document(metrics, flag="--metrics")
    trace_file = None
    with refusals.collected(), flags_named(ctx):
        if traces is not None:
            drafter_name = drafter_for(target, drafter)
            if NO_DRAFTER in (policy, drafter_name):
                raise UsageError("traces are of drafted tokens, and nothing is drafted", "Leave --traces out.")
            trace_file = TraceFile(traces, target, drafter_name)
            check_document(traces, flag="--traces")
    if refusals:
        # Reading all of the input, or waiting for standard input, is not worth it any more.
        with refusals.collected():
            check_readable(input_file)
    refusals.tell()
    engine_config = add_artefacts(engine_config, workdir)
    job = DecodeJob(
        input=open_input(input_file),
        output=output,
        metrics=metrics,
        sampling=sampling,
        traces=trace_file,
        output_format=line_format,
        all_turns=all_turns,
        token_ids=token_ids,
        resume=resume,
        overwrite=overwrite,
    )
    _tell_input(job, sink)
    used = used_artefacts(engine_config, workdir)
    if used is not None and not finished:
        sink.note(used)
    sink.resumable = True
    totals = _run(ctx, job, engine_config, workers, finished=finished)
    if finished:
        sink.note(f"{output} is finished: nothing is left to resume.")
    render(totals, job, sink)
    if totals["finish_reasons"]["error"]:
        raise typer.Exit(ERROR_ROWS)


def _tell_input(job: DecodeJob, sink: Sink) -> None:
    """What the user should know of the input before a model is loaded for it."""
    if not job.input.num_rows:
        sink.note(f"{job.input.name} holds no rows, so {job.output} will hold none.")
    unused = job.input.unused_fields.sentence()
    if unused:
        sink.note(f"{job.input.name} has {unused}.")


def _run(
    ctx: typer.Context, job: DecodeJob, config: EngineConfig, workers: Workers | None, *, finished: bool
) -> Mapping[str, Any]:
    """The totals of the whole output, which is decoded first unless it is finished."""
    sink: Sink = ctx.obj
    with sink.decode_progress() as progress:
        try:
            progress.step("Starting")
            if not finished:
                check_machine(ctx, config, workers)
            models = resolve_models(config, progress)
            if finished:
                from dspark.engine.jobs.finished import finished_summary, known_settings

                return finished_summary(job, known_settings(config, models.target, models.drafter))
            load = load_engine if workers is None else partial(load_workers, workers=workers)
            engine, tokenizer = load(ctx, models, progress=progress, stop_strings=bool(job.sampling.stop))
            for note in engine.notes:
                sink.note(note)
            from dspark.engine.jobs.decode_job import decode_file

            return decode_file(engine, tokenizer, job, progress).to_dict()
        except KeyboardInterrupt:
            raise Interrupted("interrupted", _how_to_go_on(job)) from None


def _how_to_go_on(job: DecodeJob) -> str:
    from dspark.engine.jobs.output_places import partial_path

    partial = partial_path(job.output)
    if not partial.exists():
        return "No row was decoded yet: run it again."
    flag = "--resume in place of --overwrite" if job.overwrite else "--resume"
    return f"Rows done so far are in {partial}; the same command with {flag} goes on."
