"""From the models that a configuration names to an engine, told step by step."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from dspark.cli.errors import flags_named
from dspark.engine.errors import UsageError
from dspark.engine.models.aliases import NGRAM_DRAFTER, NO_DRAFTER, drafter_for

if TYPE_CHECKING:
    import typer

    from dspark.cli.progress import Reporter
    from dspark.engine import Engine
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
        drafter = self.drafter_name if self.drafter_name in (NO_DRAFTER, NGRAM_DRAFTER) else str(self.drafter)
        return replace(self.config, target=str(self.target), drafter=drafter)


def resolve_models(config: EngineConfig, progress: Reporter) -> Models:
    """Find or fetch the models.

    Raises:
        CheckpointError: one cannot be had.
    """
    from dspark.engine.models.resolve import resolve_drafter, resolve_target

    name = NO_DRAFTER if config.policy == "none" else drafter_for(config.target, config.drafter)
    target = resolve_target(config.target, progress=progress.step)
    return Models(config, name, target, resolve_drafter(name, progress=progress.step))


def load_engine(
    ctx: typer.Context, models: Models, progress: Reporter, *, stop_strings: bool = False
) -> tuple[Engine, Tokenizer | None]:
    """The engine and the target's tokenizer, None where there is none.

    Raises:
        UsageError: the policy asks for more than the drafter proposes, or stop strings have no tokenizer.
        CheckpointError: a model cannot be loaded, or the two do not belong together.
    """
    from dspark.engine.preflight import check_models

    with flags_named(ctx):
        check_models(models.config, models.target, models.drafter)
    from dspark.engine import Engine
    from dspark.engine.jobs.tokenizer import Tokenizer

    progress.step("Loading the tokenizer")
    tokenizer = Tokenizer.load(models.target)
    if tokenizer is None and stop_strings:
        raise UsageError(
            f"--stop needs a tokenizer, and {models.target} has none",
            "Leave --stop out, or put the tokenizer's files into that folder.",
        )
    progress.step(f"Loading the models: {models.config.target}, drafter {models.drafter_name}")
    with flags_named(ctx):
        return Engine(models.local, detokenizer=tokenizer), tokenizer
