"""`dspark selftest`: does speculation leave the text of this target and drafter as it is?"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dspark.cli import options
from dspark.cli.artefacts import add_artefacts, used_artefacts
from dspark.cli.errors import FAILURE, Interrupted, Refusals, flags_named
from dspark.cli.loading import check_fit, resolve_models
from dspark.engine.errors import UsageError
from dspark.engine.jobs.workdir_names import DEFAULT_WORKDIR
from dspark.engine.models.aliases import DEFAULT_TARGET, NO_DRAFTER, drafter_for

if TYPE_CHECKING:
    from dspark.cli.output import Sink
    from dspark.engine.config import EngineConfig
    from dspark.engine.selftest.report import SelftestReport
    from dspark.engine.selftest.settings import SelftestSettings

THOROUGHNESS = "Thoroughness"
# What is decoded where no option says; the help repeats it.
_TEXTS, _TEXT_TOKENS, _CONTEXTS = 8, 48, 8


def selftest(
    ctx: typer.Context,
    texts: Annotated[
        int, typer.Option(metavar="COUNT", help="Greedy texts to compare.", rich_help_panel=THOROUGHNESS)
    ] = _TEXTS,
    text_tokens: Annotated[
        int, typer.Option(metavar="TOKENS", help="Length of each of them.", rich_help_panel=THOROUGHNESS)
    ] = _TEXT_TOKENS,
    contexts: Annotated[
        int,
        typer.Option(
            metavar="COUNT",
            help="Contexts to sample behind; four tokens of each are tested.",
            rich_help_panel=THOROUGHNESS,
        ),
    ] = _CONTEXTS,
    samples: Annotated[
        int | None,
        typer.Option(
            metavar="COUNT",
            help="Samples behind each context: more of them see smaller faults. Default: 80 on a CPU, 256 on a GPU.",
            show_default=False,
            rich_help_panel=THOROUGHNESS,
        ),
    ] = None,
    target: options.Target = DEFAULT_TARGET,
    drafter: options.Drafter = None,
    device: options.Device = "auto",
    dtype: options.Dtype = "auto",
    policy: Annotated[
        str | None,
        typer.Option(
            "--policy",
            metavar="POLICY",
            help="Policy to check, as `decode` spells it. Default: `fixed:γ`, `threshold:0.5` and, with a profile in "
            "the work directory, `async`.",
            show_default=False,
            rich_help_panel=options.DECODING,
        ),
    ] = None,
    no_adapt: options.NoAdapt = False,
    acceptance: options.Acceptance = "rejection",
    draft_top_k: options.DraftTopK = None,
    concurrency: Annotated[
        int | None,
        typer.Option(
            metavar="REQUESTS",
            help="Requests decoded at once. Default: 16 on a CPU, 64 on a GPU, or what the profile knows, if less.",
            show_default=False,
            rich_help_panel=options.DECODING,
        ),
    ] = None,
    seed: Annotated[
        int,
        typer.Option(metavar="NUMBER", help="Seed of prompts and samples, from 0 up.", rich_help_panel=THOROUGHNESS),
    ] = 0,
    workdir: Annotated[
        Path,
        typer.Option(metavar="FOLDER", help="Where a profile and a calibration are.", rich_help_panel=options.FILES),
    ] = DEFAULT_WORKDIR,
    config: options.Config = None,
    json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Check that speculation leaves the text of a target and its drafter as it is, on this device.

    Greedy text is compared with plain decoding, and every token of it with a plain forward of the target; sampled
    tokens are counted and tested against the target's distribution; texts must end where they have to, and caches must
    then hold what a fresh prefill writes. A poor drafter passes: it costs speed and no text.

    Exit codes: 0 all checks passed, 1 one failed, 2 usage, 130 interrupted.
    """
    sink: Sink = ctx.obj
    sink.configure(json=json, quiet=quiet)
    from dspark.engine.config import EngineConfig
    from dspark.engine.scheduler.policies import parse_policy
    from dspark.engine.selftest.settings import SelftestSettings

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
        adapt=not no_adapt,
    )
    settings = refusals.made(
        SelftestSettings, texts=texts, text_tokens=text_tokens, contexts=contexts, samples=samples, seed=seed
    )
    if policy is not None:
        # A draft length past the drafter's own is refused once the drafter is known.
        refusals.made(parse_policy, policy, None)
    refusals.tell()
    check_pair(ctx, engine_config, settings, workdir=workdir)


def check_pair(ctx: typer.Context, config: EngineConfig, settings: SelftestSettings, *, workdir: Path) -> None:
    """Run the self-test of a configuration and tell what it found.

    Raises:
        typer.Exit: a check failed.
    """
    sink: Sink = ctx.obj
    if drafter_for(config.target, config.drafter) == NO_DRAFTER or config.policy == "none":
        raise UsageError(
            "a self-test compares decoding with and without drafts, and nothing is drafted",
            "Give a --drafter, and a policy that uses it.",
        )
    config = add_artefacts(config, workdir)
    report = _run(ctx, config, settings, used=used_artefacts(config, workdir))
    _render(report, sink)
    if not report.passed:
        raise typer.Exit(FAILURE)


def _run(ctx: typer.Context, config: EngineConfig, settings: SelftestSettings, *, used: str | None) -> SelftestReport:
    sink: Sink = ctx.obj
    with sink.decode_progress() as progress:
        try:
            progress.step("Starting")
            from dspark.engine.preflight import check_device

            with flags_named(ctx):
                check_device(config)
            models = resolve_models(config, progress)
            check_fit(ctx, models)
            if used is not None:
                sink.note(used)
            from dspark.engine.jobs.tokenizer import Tokenizer
            from dspark.engine.selftest.job import run_selftest

            tokenizer = Tokenizer.load(models.target)
            with flags_named(ctx):
                return run_selftest(models.local, settings, tokenizer=tokenizer, step=progress.step)
        except KeyboardInterrupt:
            raise Interrupted("interrupted", "Nothing was found wrong so far: run it again.") from None


def _render(report: SelftestReport, sink: Sink) -> None:
    sink.document({"command": "selftest", **report.to_dict()})
    rows = [
        (f"{check.policy}: {check.name}", f"{'passed' if check.passed else 'FAILED'}: {check.finding}")
        for check in report.checks
    ]
    sink.table("selftest", rows)
    for note in report.notes:
        sink.note(f"{note[:1].upper()}{note[1:]}.")
    if report.passed:
        sink.note(report.verdict)
    else:
        sink.alert(report.verdict)
