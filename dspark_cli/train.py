"""`dspark train`: a drafter for a target, trained on text that the target itself writes."""

from __future__ import annotations

import shlex
import sys
from typing import TYPE_CHECKING

import typer

from dspark.cli import options, train_options
from dspark.cli.errors import Interrupted, Refusals, flags_named
from dspark.cli.lists import numbers, whole_numbers
from dspark.cli.train_result import render
from dspark.engine.errors import UsageError
from dspark.engine.models.aliases import DEFAULT_TARGET

if TYPE_CHECKING:
    from dspark.cli.output import Sink
    from dspark.engine.training.job import TrainResult
    from dspark.engine.training.settings import TrainJob

_EXAMPLE = "For example: dspark train --output my-drafter --minutes 10"


def train(
    ctx: typer.Context,
    output: train_options.Output = None,
    resume: options.Resume = False,
    overwrite: options.Overwrite = False,
    prompts: train_options.Prompts = None,
    data: train_options.Data = None,
    text_minutes: train_options.TextMinutes = 2.0,
    text_tokens: train_options.TextTokens = None,
    temperatures: train_options.Temperatures = "1,1,1,0.6,0",
    max_tokens: train_options.MaxTokens = 384,
    concurrency: options.Concurrency = None,
    target: options.Target = DEFAULT_TARGET,
    device: options.Device = "auto",
    dtype: options.Dtype = "auto",
    layers: train_options.Layers = 3,
    block_size: train_options.BlockSize = 7,
    markov_head: train_options.MarkovHead = "vanilla",
    markov_rank: train_options.MarkovRank = 64,
    feature_layers: train_options.FeatureLayers = None,
    mask_token_id: train_options.MaskTokenId = None,
    minutes: train_options.Minutes = None,
    steps: train_options.Steps = None,
    rows: train_options.Rows = 32,
    row_tokens: train_options.RowTokens = 512,
    anchors: train_options.Anchors = 96,
    optimizer: train_options.Optimizer = "muon",
    learning_rate: train_options.LearningRate = None,
    weight_decay: train_options.WeightDecay = 0.01,
    evaluate_every: train_options.EvaluateEvery = 60.0,
    seed: train_options.Seed = 0,
    license: train_options.License = None,
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
    from dspark.engine.training.output_folder import OutputFolder
    from dspark.engine.training.settings import LEARNING_RATES, DrafterShape, TextSettings, TrainJob, TrainSettings

    if steps is None and minutes is None:
        minutes = 10.0
    refusals = Refusals(ctx)
    with refusals.collected():
        refuse_both(resume=resume, overwrite=overwrite)
    chosen = None
    if feature_layers is not None:
        chosen = refusals.made(whole_numbers, feature_layers, "--feature-layers", example="1,8,15")
    shape = refusals.made(
        DrafterShape,
        layers=layers,
        block_size=block_size,
        markov_head=markov_head,
        markov_rank=markov_rank,
        feature_layers=chosen,
        mask_token_id=mask_token_id,
    )
    if learning_rate is None:
        learning_rate = LEARNING_RATES.get(optimizer, 1.0)  # no other optimizer gets past the settings
    settings = refusals.made(
        TrainSettings,
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
    )
    mix = refusals.made(numbers, temperatures, "--temperatures", example="1,0.6,0")
    text = refusals.made(
        TextSettings,
        prompts=prompts,
        data=data,
        minutes=text_minutes,
        tokens=text_tokens,
        # Refused once is enough.
        temperatures=mix or (1.0,),
        max_tokens=max_tokens,
        concurrency=concurrency,
    )
    job = refusals.made(
        TrainJob,
        target=target,
        output=output,
        shape=shape,
        settings=settings,
        text=text,
        device=device,
        dtype=dtype,
        resume=resume,
        overwrite=overwrite,
        workers=refusals.made(Workers.asked, num_workers, ray),
        license=license,
        command=shlex.join(["dspark", *sys.argv[1:]]),
    )
    with refusals.collected():
        if prompts is not None and data is not None and data.exists() and not resume:
            raise UsageError(
                f"--data {data} holds text already, so no prompt of --prompts {prompts} would be answered",
                "Leave --prompts out to train on that text, or give --data a file that is yet to be written.",
            )
    refusals.tell()
    check_folder(output, flag="--output")
    OutputFolder(output).check(job.data, resume=resume, overwrite=overwrite)
    sink.resumable = True
    result = _run(ctx, job)
    render(result, output, sink)


def _run(ctx: typer.Context, job: TrainJob) -> TrainResult:
    sink: Sink = ctx.obj
    with sink.train_progress() as progress:
        try:
            progress.step("Starting")
            from dspark.engine.training.job import train_drafter

            with flags_named(ctx):
                return train_drafter(job, progress)
        except KeyboardInterrupt as interrupt:
            message = f"interrupted ({progress.last_step})"
            raise Interrupted(message, _how_to_go_on(job, interrupt)) from None


def _how_to_go_on(job: TrainJob, interrupt: KeyboardInterrupt) -> str:
    # Before the run has begun there is nothing of it to go on with; what a run before it left is as it was.
    kept = getattr(interrupt, "kept", None)
    if kept is None:
        return "Nothing was changed: run it again."
    flag = "--resume in place of --overwrite" if job.overwrite else "--resume"
    return f"{kept}; the same command with {flag} goes on."
