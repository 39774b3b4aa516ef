"""From the models that a configuration names to an engine, told step by step."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from dspark.cli.errors import flags_named
from dspark.engine.errors import UsageError
from dspark.engine.models.aliases import NO_DRAFTER, drafter_for

if TYPE_CHECKING:
    import typer

    from dspark.cli.progress import Reporter
    from dspark.engine import Engine
    from dspark.engine.cluster.cluster_engine import ClusterEngine
    from dspark.engine.cluster.workers import Workers
    from dspark.engine.config import EngineConfig
    from dspark.engine.jobs.tokenizer import Tokenizer
    from dspark.engine.ngram.drafter import NgramDrafter


@dataclass(frozen=True, slots=True)
class Models:
    """The pair of a configuration: names as the user gave them, and local folders."""

    config: EngineConfig
    drafter_name: str
    target: Path
    drafter: Path | NgramDrafter | None

    @property
    def local(self) -> EngineConfig:
        """The configuration with the folders in place of the names."""
        drafter = str(self.drafter) if isinstance(self.drafter, Path) else self.drafter_name
        return replace(self.config, target=str(self.target), drafter=drafter)

    @property
    def shared(self) -> EngineConfig:
        """The configuration for other machines: names as they are, folders by their whole path."""
        target, drafter = (
            str(Path(name).resolve()) if Path(name).is_dir() else name
            for name in (self.config.target, self.drafter_name)
        )
        return replace(self.config, target=target, drafter=drafter)


def resolve_models(config: EngineConfig, progress: Reporter) -> Models:
    """Find or fetch the models.

    Raises:
        CheckpointError: one cannot be had.
    """
    from dspark.engine.models.resolve import resolve_drafter, resolve_target

    name = NO_DRAFTER if config.policy == "none" else drafter_for(config.target, config.drafter)
    target = resolve_target(config.target, progress=progress.step)
    return Models(config, name, target, resolve_drafter(name, progress=progress.step))


def check_machine(ctx: typer.Context, config: EngineConfig, workers: Workers | None) -> None:
    """Refuse a device that this machine has not. What another cluster has shows when its workers load.

    Raises:
        UsageError: with the reason.
    """
    if workers is None:
        from dspark.engine.preflight import check_device

        with flags_named(ctx):
            check_device(config)


def check_fit(ctx: typer.Context, models: Models, *, here: bool = True) -> None:
    """Refuse what the files of the models, the profile and the calibration already rule out.

    Args:
        here: the engine runs in this process.

    Raises:
        UsageError: the policy asks for more than the drafter proposes.
        CheckpointError: a model is not supported, or the two do not belong together.
        ArtefactError: the profile or the calibration is of something else.
    """
    from dspark.engine.preflight import check_artefacts, check_models

    with flags_named(ctx):
        check_models(models.config, models.target, models.drafter)
        check_artefacts(models.config, models.target, models.drafter, here=here)


def load_workers(
    ctx: typer.Context, models: Models, workers: Workers, progress: Reporter, *, stop_strings: bool = False
) -> tuple[ClusterEngine, Tokenizer | None]:
    """The same as `load_engine` with the engines in workers; they end with the command.

    Raises:
        UsageError, CheckpointError: as for `load_engine`; also where Ray is not installed or has not what is asked for.
    """
    tokenizer = _load_tokenizer(models, progress, stop_strings=stop_strings)
    progress.step(f"Starting workers: {models.config.target}, drafter {models.drafter_name}")
    with flags_named(ctx):
        from dspark.engine.cluster.cluster_engine import ClusterEngine

        # Folders of this machine are no other's, but what is fetched by name can be fetched there too.
        engine = ClusterEngine(models.local if workers.address is None else models.shared, workers)
    ctx.call_on_close(engine.close)
    return engine, tokenizer


def load_engine(
    ctx: typer.Context, models: Models, progress: Reporter, *, stop_strings: bool = False
) -> tuple[Engine, Tokenizer | None]:
    """The engine and the target's tokenizer, None where there is none.

    Raises:
        UsageError: the policy asks for more than the drafter proposes, or stop strings have no tokenizer.
        CheckpointError: a model cannot be loaded, or the two do not belong together.
    """
    tokenizer = _load_tokenizer(models, progress, stop_strings=stop_strings)
    from dspark.engine import Engine

    progress.step(f"Loading the models: {models.config.target}, drafter {models.drafter_name}")
    with flags_named(ctx):
        return Engine(models.local, detokenizer=tokenizer), tokenizer


def _load_tokenizer(models: Models, progress: Reporter, *, stop_strings: bool) -> Tokenizer | None:
    from dspark.engine.jobs.tokenizer import Tokenizer

    progress.step("Loading the tokenizer")
    tokenizer = Tokenizer.load(models.target)
    if tokenizer is None and stop_strings:
        raise UsageError(
            f"--stop needs a tokenizer, and {models.target} has none",
            "Leave --stop out, or put the tokenizer's files into that folder.",
        )
    return tokenizer
