"""`dspark decode`: a file of prompts in, a file of answers out."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import typer

from dspark.cli import decode_options, options
from dspark.cli.artefacts import add_artefacts, policy_reason, used_artefacts
from dspark.cli.decode_result import render
from dspark.cli.errors import ERROR_ROWS, Interrupted, Refusals
from dspark.cli.loading import check_fit, check_machine, load_engine, load_workers, resolve_models
from dspark.cli.selftest import check_pair
from dspark.engine.errors import UsageError
from dspark.engine.jobs.workdir_names import DEFAULT_WORKDIR
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
    input_file: decode_options.Input = None,
    output: decode_options.Output = None,
    output_format: options.OutputFormat = "dspark",
    metrics: decode_options.Metrics = None,
    traces: decode_options.Traces = None,
    rounds: decode_options.Rounds = None,
    workdir: options.Workdir = DEFAULT_WORKDIR,
    resume: options.Resume = False,
    overwrite: options.Overwrite = False,
    token_ids: decode_options.TokenIds = False,
    all_turns: decode_options.AllTurns = False,
    selftest: decode_options.Selftest = False,
    target: options.Target = DEFAULT_TARGET,
    drafter: options.Drafter = None,
    device: options.Device = "auto",
    dtype: options.Dtype = "auto",
    policy: options.Policy = None,
    no_adapt: options.NoAdapt = False,
    acceptance: options.Acceptance = "rejection",
    draft_top_k: options.DraftTopK = None,
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
    if input_file is None and not selftest:
        raise UsageError("decode needs --input, a JSONL file with one prompt a line", _EXAMPLE)
    from dspark.engine.cluster.workers import Workers
    from dspark.engine.config import EngineConfig
    from dspark.engine.jobs.decode_job import DecodeJob
    from dspark.engine.jobs.input_file import check_readable, open_input
    from dspark.engine.jobs.output_format import OutputFormat
    from dspark.engine.jobs.output_places import DecodePlaces
    from dspark.engine.jobs.round_file import RoundFile
    from dspark.engine.jobs.trace_file import TraceFile
    from dspark.engine.requests import SamplingParams
    from dspark.engine.scheduler.policies import parse_policy

    refusals = Refusals(ctx)
    engine_config = refusals.made_each(
        EngineConfig,
        target=target,
        drafter=drafter,
        device=device,
        dtype=dtype,
        policy=policy,
        acceptance=acceptance,
        draft_top_k=draft_top_k,
        concurrency=concurrency,
        seed=seed,
        adapt=not no_adapt,
    )
    sampling = refusals.made_each(
        SamplingParams,
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        max_tokens=max_tokens,
        stop=tuple(stop or ()),
        ignore_eos=ignore_eos,
    )
    workers = refusals.made(Workers.asked, num_workers, ray)
    line_format = refusals.made(OutputFormat, output_format, model=target)
    if policy is not None:
        # A draft length past the drafter's own is refused once the drafter is known.
        refusals.made(parse_policy, policy, 0 if drafter_for(target, drafter) == NO_DRAFTER else None)
    if selftest:
        from dspark.engine.selftest.settings import SelftestSettings

        refusals.tell()
        sink.note("A self-test decodes prompts of its own, greedily and sampled: no file is read or written.")
        check_pair(ctx, engine_config, SelftestSettings(seed=seed), workdir=workdir)
        return
    assert input_file is not None, "checked above"
    finished = False
    places = DecodePlaces.named(output, metrics, workdir=workdir)
    with refusals.collected():
        finished = places.check_output(resume=resume, overwrite=overwrite)
    with refusals.collected():
        if not finished:
            places.check_metrics()
    trace_file = refusals.made(TraceFile.asked, traces, target=target, drafter=drafter, policy=policy)
    round_file = refusals.made(RoundFile.asked, rounds, one_engine=workers is None)
    if refusals:
        # Reading all of the input, or waiting for standard input, is not worth it any more.
        with refusals.collected():
            check_readable(input_file)
    refusals.tell()
    engine_config = add_artefacts(engine_config, workdir)
    job = DecodeJob(
        input=open_input(input_file),
        output=places.output,
        metrics=places.metrics,
        sampling=sampling,
        traces=trace_file,
        rounds=round_file,
        output_format=line_format,
        all_turns=all_turns,
        token_ids=token_ids,
        resume=resume,
        overwrite=overwrite,
        target=target,
        drafter=NO_DRAFTER if policy == "none" else drafter_for(target, drafter),
    )
    _tell_input(job, sink)
    sink.resumable = True
    used = used_artefacts(engine_config, workdir)
    totals = _run(ctx, job, engine_config, workers, finished=finished, used=used)
    if finished:
        _tell_finished(job, sink)
    render(totals, job, sink, why=policy_reason(engine_config, workdir))
    if totals["finish_reasons"]["error"]:
        raise typer.Exit(ERROR_ROWS)


def _tell_input(job: DecodeJob, sink: Sink) -> None:
    """What the user should know of the input before a model is loaded for it."""
    if not job.input.num_rows:
        sink.note(f"{job.input.name} holds no rows, so {job.output} will hold none.")
    unused = job.input.unused_fields.sentence()
    if unused:
        sink.note(f"{job.input.name} has {unused}.")


def _tell_finished(job: DecodeJob, sink: Sink) -> None:
    """Why nothing was decoded."""
    sink.note(f"{job.output} is finished: nothing is left to resume.")
    if job.rounds is not None:
        sink.note(f"No round was run, so {job.rounds.path} was not written.")


def _run(
    ctx: typer.Context,
    job: DecodeJob,
    config: EngineConfig,
    workers: Workers | None,
    *,
    finished: bool,
    used: str | None,
) -> Mapping[str, Any]:
    """The totals of the whole output, which is decoded first unless it is finished; `used` tells of artefacts."""
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
            check_fit(ctx, models, here=workers is None)
            if used is not None:
                sink.note(used)
            load = load_engine if workers is None else partial(load_workers, workers=workers)
            engine, tokenizer = load(ctx, models, progress=progress, stop_strings=bool(job.sampling.stop))
            from dspark.engine.artefacts import sampling_notes
            from dspark.engine.jobs.decode_job import decode_file

            for note in (*engine.notes, *sampling_notes(config, job.sampling)):
                sink.note(note)

            return decode_file(engine, tokenizer, job, progress).to_dict()
        except KeyboardInterrupt:
            raise Interrupted("interrupted", _how_to_go_on(job)) from None


def _how_to_go_on(job: DecodeJob) -> str:
    from dspark.engine.jobs.output_places import partial_path

    partial = partial_path(job.output)
    if not partial.exists():
        return "No row is on disk: run it again."
    flag = "--resume in place of --overwrite" if job.overwrite else "--resume"
    return f"Rows done so far are in {partial}; the same command with {flag} goes on."
