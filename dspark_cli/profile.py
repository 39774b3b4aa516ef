"""`dspark profile`: how long a round's parts take on this device, by batch size."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dspark.cli import options
from dspark.cli.errors import Interrupted, Refusals, flags_named
from dspark.cli.lists import whole_numbers
from dspark.cli.loading import resolve_models
from dspark.engine.jobs.workdir_names import DEFAULT_WORKDIR, PROFILE, PROFILE_PICTURE
from dspark.engine.models.aliases import DEFAULT_TARGET, drafter_for, shaped_drafter

if TYPE_CHECKING:
    from dspark.cli.output import Sink
    from dspark.engine.config import EngineConfig
    from dspark.engine.profiling.settings import ProfileSettings
    from dspark.profiles import PredictionError, Profile

MEASURING = "Measuring"


def profile(
    ctx: typer.Context,
    context_tokens: Annotated[
        str,
        typer.Option(
            metavar="N[,N…]",
            help="Context lengths to measure behind, in tokens a request; the first one is the reference.",
            rich_help_panel=MEASURING,
        ),
    ] = "256,1024,4096",
    max_batch_tokens: Annotated[
        int | None,
        typer.Option(
            metavar="TOKENS",
            help="Largest batch, in packed tokens. Default: what --concurrency requests can verify at once.",
            show_default=False,
            rich_help_panel=MEASURING,
        ),
    ] = None,
    repeats: Annotated[
        int | None,
        typer.Option(
            metavar="COUNT",
            help="Samples of each point. Default: as many as fit into a minute, 5 to 20.",
            show_default=False,
            rich_help_panel=MEASURING,
        ),
    ] = None,
    concurrency: options.Concurrency = None,
    target: options.Target = DEFAULT_TARGET,
    drafter: options.Drafter = None,
    device: options.Device = "auto",
    dtype: options.Dtype = "auto",
    load_format: options.LoadFormat = "auto",
    workdir: options.Workdir = DEFAULT_WORKDIR,
    overwrite: options.ReplaceOthers = False,
    seed: Annotated[
        int,
        typer.Option(
            metavar="NUMBER",
            help="Seed of the order and of the points kept to test predictions, from 0 up.",
            rich_help_panel=MEASURING,
        ),
    ] = 0,
    config: options.Config = None,
    json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Measure the step curve of a target and its drafter on this device.

    Writes profile.json (the curve, its raw samples, what it was measured with) and profile.png into the work directory.
    Those of the same models are replaced once everything is measured; interrupted before that, they stay as they are.
    Other work on the machine shows up in the numbers.

    Exit codes: 0 done, 1 failure, 2 usage, 130 interrupted.
    """
    from dspark.engine.config import EngineConfig
    from dspark.engine.jobs.output_places import check_folder
    from dspark.engine.jobs.pair_files import NamedPair, check_replaced
    from dspark.engine.profiling.settings import DEFAULT_CONTEXTS, ProfileSettings

    sink: Sink = ctx.obj
    sink.configure(json=json, quiet=quiet)
    refusals = Refusals(ctx)
    engine_config = refusals.made_each(
        EngineConfig,
        target=target,
        drafter=drafter,
        device=device,
        dtype=dtype,
        load_format=load_format,
        concurrency=concurrency,
        seed=seed,
    )
    drafter_name = drafter if load_format == "dummy" else drafter_for(target, drafter)
    contexts = refusals.made(whole_numbers, context_tokens, "--context-tokens", example="256,1024", least=1)
    settings = refusals.made(
        ProfileSettings,
        # Refused once is enough.
        context_tokens=contexts or DEFAULT_CONTEXTS,
        max_batch_tokens=max_batch_tokens,
        repeats=repeats,
        seed=seed,
        target_name=target,
        drafter_name=drafter_name,
    )
    document, picture = workdir / PROFILE, workdir / PROFILE_PICTURE
    # Fail now rather than when everything is measured.
    with refusals.collected():
        check_folder(workdir, flag="--workdir")
        if not overwrite:
            check_replaced([document], NamedPair(target, drafter_name or shaped_drafter(target)))
    refusals.tell()
    measured = _run(ctx, engine_config, settings, document)
    _save(measured, document, picture)
    _render(measured, document, picture, sink)


def _run(ctx: typer.Context, config: EngineConfig, settings: ProfileSettings, document: Path) -> Profile:
    sink: Sink = ctx.obj
    with sink.profile_progress() as progress:
        try:
            progress.step("Starting")
            from dspark.engine import Engine
            from dspark.engine.preflight import check_device, check_models
            from dspark.engine.profiling.job import profile_engine

            with flags_named(ctx):
                check_device(config)
            if config.load_format == "auto":
                models = resolve_models(config, progress)
                check_models(config, models.target, models.drafter)
                config = models.local
            progress.step("Loading the models")
            with flags_named(ctx):
                engine = Engine(
                    config, progress=lambda graph, done, total: progress.step("Capturing CUDA graphs", done, total)
                )
                return profile_engine(engine, settings, progress)
        except KeyboardInterrupt:
            kept = f"{document} is still the one before" if document.exists() else f"{document} was not written"
            raise Interrupted(
                f"interrupted ({progress.last_step})", f"{kept}: half a profile is none. Run it again."
            ) from None


def _save(measured: Profile, document: Path, picture: Path) -> None:
    from dspark.profiles import save_profile
    from dspark.profiles.plots import save_plot

    # The picture first: whoever finds a new profile.json finds the picture that belongs to it.
    save_plot(measured, picture)
    save_profile(measured, document)


def _render(measured: Profile, document: Path, picture: Path, sink: Sink) -> None:
    from dspark.profiles.trust import MEASURE_AGAIN, doubts_about

    curve, validation = measured.curve, measured.validation
    stairs = curve.reference_target
    buckets = stairs.buckets
    speed, round_speed = curve.steps_per_s(buckets), curve.steps_per_s(buckets, scope="round")
    sink.document(
        {
            "command": "profile",
            "profile": str(document),
            "picture": str(picture),
            "reference_context_tokens": curve.reference_context_tokens,
            "batch_tokens": buckets.tolist(),
            "step_time_s": stairs.time_s.tolist(),
            "steps_per_s": speed.tolist(),
            "rounds_per_s": round_speed.tolist(),
            "validation": _error_document(validation),
            "notes": list(measured.notes),
        }
    )
    rows = [
        (
            str(bucket),
            f"{stairs.time_s[i] * 1e3:.2f}",
            f"{stairs.p20_s[i] * 1e3:.2f}-{stairs.p80_s[i] * 1e3:.2f}",
            _three_digits(stairs.load_s[i] * 1e9),
            f"{speed[i]:,.1f}",
            f"{round_speed[i]:,.1f}",
        )
        for i, bucket in enumerate(buckets)
    ]
    headers = ("batch tokens", "step ms", "p20-p80", "ns a KV token", "steps/s", "rounds/s")
    sink.grid(f"profile, full blocks behind {curve.reference_context_tokens:,} tokens", headers, rows)
    held_out = "no points were kept from the fit"
    if validation.median is not None and validation.p90 is not None:
        held_out = f"{validation.median:.1%} median, {validation.p90:.1%} p90 over {validation.num_points} points"
    summary = [
        ("device", f"{measured.conditions.device_name}, {measured.conditions.dtype}, {measured.conditions.runner}"),
        ("spread of repeats", f"{measured.manifest['spread']:.1%} (p20-p80)"),
        ("prediction error", f"{held_out}, none of them fitted" if validation.num_points else held_out),
        ("profile", str(document)),
        ("picture", str(picture)),
    ]
    sink.table("profile", summary)
    for note in measured.notes:
        sink.note(note)
    poor_guide = doubts_about(measured).poor_guide
    if poor_guide:
        sink.note(f"{poor_guide[0].upper()}{poor_guide[1:]}. {MEASURE_AGAIN}.")


def _three_digits(value: float) -> str:
    """Three significant ones, without an exponent; what would show as less than a thousandth is 0."""
    if value < 0.001:
        return "0"
    return f"{float(f'{value:.3g}'):,.10g}"


def _error_document(error: PredictionError) -> dict[str, Any]:
    return {"points": error.num_points, "median": error.median, "p90": error.p90, "largest": error.largest}
