"""`dspark decode`: a file of prompts in, a file of answers out."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dspark.cli import options
from dspark.cli.errors import ERROR_ROWS, Interrupted
from dspark.engine.errors import RequestError, UsageError

if TYPE_CHECKING:
    from dspark.cli.output import Sink
    from dspark.engine.config import EngineConfig
    from dspark.engine.jobs.decode_job import DecodeJob
    from dspark.engine.jobs.summary import DecodeSummary
    from dspark.engine.requests import SamplingParams

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
            help="One answer a line, in input order. Default: decode.jsonl in the work directory.",
            show_default=False,
            rich_help_panel=options.FILES,
        ),
    ] = None,
    metrics: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Counts and speeds of the run, JSON. Default: decode.metrics.json in the work directory.",
            show_default=False,
            rich_help_panel=options.FILES,
        ),
    ] = None,
    workdir: options.Workdir = Path("dspark-out"),
    resume: Annotated[
        bool,
        typer.Option("--resume", help="Go on with an interrupted run.", rich_help_panel=options.FILES),
    ] = False,
    overwrite: Annotated[
        bool,
        typer.Option("--overwrite", help="Replace an existing output.", rich_help_panel=options.FILES),
    ] = False,
    token_ids: Annotated[
        bool,
        typer.Option("--token-ids", help="Add `token_ids` to each output row.", rich_help_panel=options.FILES),
    ] = False,
    all_turns: Annotated[
        bool,
        typer.Option(
            "--all-turns",
            help="Ask every turn of a `turns` row, with the model's own answers in between; default: the first.",
            rich_help_panel=options.DECODING,
        ),
    ] = False,
    target: options.Target = options.BUILTIN_TARGET,
    drafter: options.Drafter = None,
    device: options.Device = "auto",
    dtype: options.Dtype = "auto",
    policy: options.Policy = None,
    acceptance: options.Acceptance = "rejection",
    concurrency: options.Concurrency = None,
    max_tokens: options.MaxTokens = 256,
    temperature: options.Temperature = 0.0,
    top_p: options.TopP = 1.0,
    top_k: options.TopK = 0,
    stop: options.Stop = None,
    ignore_eos: options.IgnoreEos = False,
    seed: options.Seed = 0,
    config: options.Config = None,
    json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Decode a JSONL file of prompts.

    A `prompt` is continued as raw text; `messages`, `turns` and `conversations` go through the target's chat template.
    Rows may set max_tokens, temperature, top_p, top_k, seed and stop for themselves. A row that cannot be decoded
    becomes an error row and stops nothing.

    Exit codes: 0 all rows fine, 1 failure, 2 usage, 3 finished with error rows, 130 interrupted (go on with --resume).
    """
    from dspark.engine.config import EngineConfig
    from dspark.engine.jobs.decode_job import DecodeJob, finished_summary
    from dspark.engine.jobs.input_file import open_input
    from dspark.engine.jobs.results import check_output, is_finished
    from dspark.engine.scheduler.policies import parse_policy

    sink: Sink = ctx.obj
    sink.configure(json=json, quiet=quiet)
    if input_file is None:
        raise UsageError("decode needs --input, a JSONL file with one prompt a line", _EXAMPLE)
    engine_config = EngineConfig(
        target=target,
        drafter=options.drafter_for(target, drafter),
        device=device,
        dtype=dtype,
        policy=policy,
        acceptance=acceptance,
        concurrency=concurrency,
        seed=seed,
    )
    # A misspelt policy need not wait for the models; a draft length must, for the drafter's own.
    if policy is not None and not policy.startswith("fixed:"):
        parse_policy(policy, sys.maxsize)
    sampling = _sampling(
        temperature=temperature, top_k=top_k, top_p=top_p, max_tokens=max_tokens, stop=stop, ignore_eos=ignore_eos
    )
    output = output or workdir / "decode.jsonl"
    finished = resume and is_finished(output)
    if not finished:
        check_output(output, resume=resume, overwrite=overwrite)
    job = DecodeJob(
        input=open_input(input_file),
        output=output,
        metrics=metrics or workdir / "decode.metrics.json",
        sampling=sampling,
        all_turns=all_turns,
        token_ids=token_ids,
        resume=resume,
        overwrite=overwrite,
    )
    if finished:
        sink.note(f"{output} is finished: nothing is left to resume.")
    summary = finished_summary(job) if finished else _run(job, engine_config, sink)
    _render(summary, job, sink)
    if summary.num_errors:
        raise typer.Exit(ERROR_ROWS)


def _sampling(
    *, temperature: float, top_k: int, top_p: float, max_tokens: int, stop: list[str] | None, ignore_eos: bool
) -> SamplingParams:
    from dspark.engine.requests import SamplingParams

    try:
        return SamplingParams(
            temperature=temperature,
            top_k=top_k,
            top_p=top_p,
            max_tokens=max_tokens,
            stop=tuple(stop or ()),
            ignore_eos=ignore_eos,
        )
    except RequestError as error:
        raise UsageError(str(error), error.remedy) from None


def _run(job: DecodeJob, config: EngineConfig, sink: Sink) -> DecodeSummary:
    with sink.progress() as progress:
        try:
            progress.step("Starting")
            from dspark.engine import Engine
            from dspark.engine.jobs.decode_job import decode_file
            from dspark.engine.jobs.tokenizer import Tokenizer
            from dspark.engine.models.resolve import resolve_target

            folder = resolve_target(config.target, progress=progress.step)
            progress.step("Loading the tokenizer")
            tokenizer = Tokenizer.load(folder)
            progress.step("Loading the models")
            engine = Engine(replace(config, target=str(folder)), detokenizer=tokenizer)
            return decode_file(engine, tokenizer, job, progress)
        except KeyboardInterrupt:
            raise Interrupted("Interrupted.", _how_to_go_on(job)) from None


def _how_to_go_on(job: DecodeJob) -> str:
    from dspark.engine.jobs.results import partial_path

    partial = partial_path(job.output)
    if not partial.exists():
        return "No row was decoded yet: run it again."
    flag = "--resume in place of --overwrite" if job.overwrite else "--resume"
    return f"Rows done so far are in {partial}; the same command with {flag} goes on."


def _render(summary: DecodeSummary, job: DecodeJob, sink: Sink) -> None:
    document = {"command": "decode", "output": str(job.output), "metrics": str(job.metrics), **summary.to_dict()}
    sink.document(document)
    reasons = summary.finish_reasons
    speed, length, rate = summary.tokens_per_s, summary.mean_acceptance_length, summary.draft_acceptance_rate
    rows = [
        ("rows", f"{summary.num_rows} ({reasons['stop']} stop, {reasons['length']} length, {reasons['error']} error)"),
        ("tokens", f"{summary.completion_tokens:,} from {summary.prompt_tokens:,} prompt tokens"),
        ("speed", f"{speed:,.1f} tok/s over {summary.decode_s:.1f} s" if speed else "-"),
        ("mean acceptance length", f"{length:.2f} tokens a round" if length else "-"),
        ("draft acceptance rate", f"{rate:.1%} of verified draft tokens" if rate is not None else "-"),
        ("output", str(job.output)),
        ("metrics", str(job.metrics)),
    ]
    sink.table("decode", rows)
    if summary.num_errors:
        sink.note(f"{summary.num_errors} of {summary.num_rows} rows could not be decoded: see their `error`.")
