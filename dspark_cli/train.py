"""`dspark train`: a drafter for a target, trained on text that the target itself writes."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dspark.cli import options
from dspark.cli.errors import Interrupted, flags_named
from dspark.engine.errors import UsageError
from dspark.engine.models.aliases import DEFAULT_TARGET

if TYPE_CHECKING:
    from dspark.cli.output import Sink
    from dspark.engine.training.acceptance import Acceptance
    from dspark.engine.training.job import TrainResult
    from dspark.engine.training.settings import TrainJob

TEXT, SHAPE, TRAINING = "Text", "Drafter", "Training"
_EXAMPLE = "For example: dspark train --output my-drafter --minutes 10"


def train(
    ctx: typer.Context,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            metavar="FOLDER",
            help="Where the drafter goes; `--drafter FOLDER` decodes with it. Required.",
            show_default=False,
            rich_help_panel=options.FILES,
        ),
    ] = None,
    resume: options.Resume = False,
    overwrite: options.Overwrite = False,
    prompts: Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            help="JSONL of prompts that the target answers, in any form that `decode` takes. Half of the text answers "
            "them, the other half questions that the target asks itself. Default: its own questions alone.",
            show_default=False,
            rich_help_panel=TEXT,
        ),
    ] = None,
    data: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="JSONL of texts to train on; written if it does not exist. Default: training/text.jsonl in --output.",
            show_default=False,
            rich_help_panel=TEXT,
        ),
    ] = None,
    text_minutes: Annotated[
        float, typer.Option(metavar="MINUTES", help="Minutes in which the target writes.", rich_help_panel=TEXT)
    ] = 2.0,
    text_tokens: Annotated[
        int | None,
        typer.Option(
            metavar="TOKENS",
            help="Tokens after which the target stops writing, if --text-minutes leave so many. Default: no such end.",
            show_default=False,
            rich_help_panel=TEXT,
        ),
    ] = None,
    temperatures: Annotated[
        str,
        typer.Option(metavar="T[,T…]", help="Temperatures of the text, taken in turn.", rich_help_panel=TEXT),
    ] = "1,1,1,0.6,0",
    max_tokens: Annotated[
        int, typer.Option(metavar="TOKENS", help="Most tokens of a text.", rich_help_panel=TEXT)
    ] = 384,
    concurrency: options.Concurrency = None,
    target: options.Target = DEFAULT_TARGET,
    device: options.Device = "auto",
    dtype: options.Dtype = "auto",
    layers: Annotated[int, typer.Option(metavar="COUNT", help="Layers of the backbone.", rich_help_panel=SHAPE)] = 3,
    block_size: Annotated[
        int, typer.Option(metavar="TOKENS", help="Drafted tokens of a block (γ).", rich_help_panel=SHAPE)
    ] = 7,
    markov_head: Annotated[
        str, typer.Option(metavar="vanilla|gated|rnn|none", help="Kind of Markov head.", rich_help_panel=SHAPE)
    ] = "vanilla",
    markov_rank: Annotated[
        int, typer.Option(metavar="RANK", help="Rank of the Markov head.", rich_help_panel=SHAPE)
    ] = 64,
    feature_layers: Annotated[
        str | None,
        typer.Option(
            metavar="L[,L…]",
            help="Target layers whose states the drafter reads; -1 is the embedding. Default: five, spread evenly.",
            show_default=False,
            rich_help_panel=SHAPE,
        ),
    ] = None,
    mask_token_id: Annotated[
        int | None,
        typer.Option(
            metavar="TOKEN",
            help="Token of slots that are to be filled. Default: one that no text holds.",
            show_default=False,
            rich_help_panel=SHAPE,
        ),
    ] = None,
    minutes: Annotated[
        float | None,
        typer.Option(
            metavar="MINUTES",
            help="Minutes of training, the text's not counted. Default: 10, unless --steps is given.",
            show_default=False,
            rich_help_panel=TRAINING,
        ),
    ] = None,
    steps: Annotated[
        int | None,
        typer.Option(
            metavar="COUNT",
            help="Steps of training, in place of minutes. Default: none.",
            show_default=False,
            rich_help_panel=TRAINING,
        ),
    ] = None,
    rows: Annotated[int, typer.Option(metavar="COUNT", help="Rows of a step.", rich_help_panel=TRAINING)] = 32,
    row_tokens: Annotated[
        int, typer.Option(metavar="TOKENS", help="Tokens of a row, which whole texts fill.", rich_help_panel=TRAINING)
    ] = 512,
    anchors: Annotated[
        int, typer.Option(metavar="COUNT", help="Blocks that are drafted in a row.", rich_help_panel=TRAINING)
    ] = 96,
    optimizer: Annotated[
        str,
        typer.Option(
            metavar="adamw|muon",
            help="`muon`: Muon for the projections, AdamW for the rest.",
            rich_help_panel=TRAINING,
        ),
    ] = "adamw",
    learning_rate: Annotated[
        float, typer.Option(metavar="NUMBER", help="Highest learning rate.", rich_help_panel=TRAINING)
    ] = 1.5e-3,
    weight_decay: Annotated[
        float, typer.Option(metavar="NUMBER", help="Weight decay of the projections.", rich_help_panel=TRAINING)
    ] = 0.01,
    evaluate_every: Annotated[
        float,
        typer.Option(
            metavar="SECONDS", help="Seconds between measurements of the held-out text.", rich_help_panel=TRAINING
        ),
    ] = 60.0,
    seed: Annotated[
        int,
        typer.Option(metavar="NUMBER", help="Seed of text, weights, anchors and order.", rich_help_panel=TRAINING),
    ] = 0,
    num_workers: options.NumWorkers = None,
    ray: options.RayAddress = None,
    config: options.Config = None,
    json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Train a drafter for a target on text that the target writes.

    First the target answers prompts at a mix of temperatures. Then the drafter learns its distributions, its features
    recomputed on the fly, and a fiftieth of the prompts, held out, measures how many tokens a round would yield. The
    best drafter so far is always in --output, with a model card; an interrupted run goes on with --resume.

    Exit codes: 0 done, 1 failure, 2 usage, 130 interrupted (go on with --resume).
    """
    sink: Sink = ctx.obj
    sink.configure(json=json, quiet=quiet)
    if output is None:
        raise UsageError("train needs --output, a folder for the drafter", _EXAMPLE)
    from dspark.engine.cluster.workers import Workers
    from dspark.engine.jobs.output_places import check_folder, refuse_both
    from dspark.engine.training.settings import DrafterShape, TextSettings, TrainJob, TrainSettings

    refuse_both(resume=resume, overwrite=overwrite)
    if steps is None and minutes is None:
        minutes = 10.0
    with flags_named(ctx):
        job = TrainJob(
            target=target,
            output=output,
            shape=DrafterShape(
                layers=layers,
                block_size=block_size,
                markov_head=markov_head,
                markov_rank=markov_rank,
                feature_layers=None if feature_layers is None else _whole_numbers(feature_layers, "--feature-layers"),
                mask_token_id=mask_token_id,
            ),
            settings=TrainSettings(
                steps=steps,
                minutes=minutes,
                rows=rows,
                row_tokens=row_tokens,
                anchors=anchors,
                optimizer=optimizer,
                learning_rate=learning_rate,
                weight_decay=weight_decay,
                evaluate_every_s=evaluate_every,
                seed=seed,
            ),
            text=TextSettings(
                prompts=prompts,
                data=data,
                minutes=text_minutes,
                tokens=text_tokens,
                temperatures=_numbers(temperatures, "--temperatures"),
                max_tokens=max_tokens,
                concurrency=concurrency,
            ),
            device=device,
            dtype=dtype,
            resume=resume,
            overwrite=overwrite,
            workers=Workers.asked(num_workers, ray),
            command=shlex.join(["dspark", *sys.argv[1:]]),
        )
    check_folder(output, flag="--output")
    job.check_output()
    sink.resumable = True
    result = _run(ctx, job)
    _render(result, job, sink)


def _numbers(text: str, flag: str) -> tuple[float, ...]:
    try:
        return tuple(float(part) for part in text.split(","))
    except ValueError:
        raise UsageError(f"{flag} is {text!r}, not numbers", f"Write, say, {flag} 1,0.6,0.") from None


def _whole_numbers(text: str, flag: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise UsageError(f"{flag} is {text!r}, not whole numbers", f"Write, say, {flag} 1,8,15.") from None


def _run(ctx: typer.Context, job: TrainJob) -> TrainResult:
    sink: Sink = ctx.obj
    with sink.train_progress() as progress:
        try:
            progress.step("Starting")
            from dspark.engine.training.job import train_drafter

            with flags_named(ctx):
                return train_drafter(job, progress)
        except KeyboardInterrupt:
            raise Interrupted(f"interrupted ({progress.last_step})", _how_to_go_on(job)) from None


def _how_to_go_on(job: TrainJob) -> str:
    flag = "--resume in place of --overwrite" if job.overwrite else "--resume"
    kept = f"The best drafter so far is in {job.output}" if job.has_drafter else "No drafter was saved yet"
    return f"{kept}; the same command with {flag} goes on."


def _render(result: TrainResult, job: TrainJob, sink: Sink) -> None:
    state, best = result.state, result.state.best
    assert best is not None, "a run ends with a measurement"
    seconds = max(state.elapsed_s, 1e-9)
    sink.document(
        {
            "command": "train",
            "output": str(job.output),
            "steps": state.step,
            "training_s": state.elapsed_s,
            "block_positions": state.positions,
            "parameters": result.parameters,
            "texts": result.text.texts,
            "text_tokens": result.text.tokens,
            "best": best.to_dict(),
        }
    )
    speed = state.positions / seconds
    rows = [
        ("text", f"{result.text.tokens:,} tokens in {result.text.texts:,} texts"),
        ("training", f"{state.step:,} steps in {seconds:,.0f} s, {speed:,.0f} block positions a second"),
        *_lengths(best),
        ("drafter", f"{job.output} ({result.parameters / 1e6:.1f} M parameters)"),
    ]
    sink.table("train", rows)


def _lengths(best: Acceptance) -> list[tuple[str, str]]:
    measured: list[tuple[str, Any, Any]] = [
        ("held out, temperature 1", best.sampled_length, best.sampled_conditional),
        ("held out, temperature 0", best.greedy_length, best.greedy_conditional),
    ]
    return [
        (name, f"{length:.2f} tokens a round; by position {' '.join(f'{rate:.2f}' for rate in rates)}")
        for name, length, rates in measured
        if length is not None
    ]
