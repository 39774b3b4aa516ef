"""What a training run is asked to do."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from pathlib import Path

from dspark.engine.cluster.workers import Workers
from dspark.engine.config import EngineConfig
from dspark.engine.errors import UsageError
from dspark.engine.models.drafter_formats import MARKOV_HEAD_TYPES, MOST_BLOCK_SIZE

NO_MARKOV_HEAD = "none"
MUON = "muon"
# Optimizer -> the highest learning rate that suits it.
LEARNING_RATES = {"adamw": 1.5e-3, MUON: 3e-3}
TRAINED_DTYPES = ("auto", "float32", "bfloat16")
PARTIAL_SUFFIX = ".partial"
# What a card's front matter holds without quotes.
_LICENSE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9.+-]*")
# Folder beside the drafter that a run goes on from.
STATE_FOLDER = "training"
# Rows are laid out in cache pages of so many tokens.
PAGE_TOKENS = 16


@dataclass(frozen=True, slots=True)
class DrafterShape:
    """What a drafter has besides the target's own sizes. `feature_layers` None: five, spread over the target.

    Raises:
        UsageError: a value is outside what it may be.
    """

    layers: int = 3
    block_size: int = 7
    markov_head: str = "vanilla"
    markov_rank: int = 64
    feature_layers: tuple[int, ...] | None = None
    mask_token_id: int | None = None

    def __post_init__(self) -> None:
        for name, value, most in (("layers", self.layers, 64), ("markov_rank", self.markov_rank, 4096)):
            if not 1 <= value <= most:
                raise UsageError(f"{name} is {value}", f"Give a whole number from 1 to {most}.")
        if not 1 <= self.block_size <= MOST_BLOCK_SIZE:
            raise UsageError(f"block_size is {self.block_size}", f"Give a whole number from 1 to {MOST_BLOCK_SIZE}.")
        kinds = (*MARKOV_HEAD_TYPES, NO_MARKOV_HEAD)
        if self.markov_head not in kinds:
            raise UsageError(f"markov_head is {self.markov_head!r}", f"Choose one of: {', '.join(kinds)}.")


@dataclass(frozen=True, slots=True)
class TrainSettings:
    """How a drafter is trained.

    A step takes `rows` rows of `row_tokens` tokens, each filled with whole texts, and `anchors` blocks a row. The run
    ends after `steps`, or after `minutes` of training; learning rate and progress follow the one that is given.

    Raises:
        UsageError: a value is outside what it may be, or not exactly one end is given.
    """

    steps: int | None = None
    minutes: float | None = None
    rows: int = 32
    row_tokens: int = 512
    anchors: int = 96
    optimizer: str = MUON
    learning_rate: float = LEARNING_RATES[MUON]
    warmup: float = 0.03  # share of the run
    weight_decay: float = 0.01
    max_gradient_norm: float = 1.0
    ce_share: float = 0.1
    l1_share: float = 0.9
    confidence_share: float = 1.0
    position_decay: float = 4.0  # weight of slot k is exp(-(k - 1) / position_decay)
    evaluate_every_s: float = 60.0
    evaluate_every_steps: int | None = None  # in place of seconds
    save_every_s: float = 60.0
    seed: int = 0

    def __post_init__(self) -> None:
        if self.steps is None and self.minutes is None:
            raise UsageError("nothing says when the run ends", "Give one of --steps and --minutes.")
        if self.steps is not None and self.minutes is not None:
            raise UsageError("steps stands beside --minutes, and each says when to end", "Keep one of them.")
        if self.optimizer not in LEARNING_RATES:
            raise UsageError(f"optimizer is {self.optimizer!r}", f"Choose one of: {', '.join(LEARNING_RATES)}.")
        for name in ("steps", "rows", "row_tokens", "anchors", "evaluate_every_steps"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise UsageError(f"{name} is {value}", "Give a whole number of at least 1.")
        for name in (
            "minutes",
            "learning_rate",
            "max_gradient_norm",
            "position_decay",
            "evaluate_every_s",
            "save_every_s",
        ):
            value = getattr(self, name)
            if value is not None and not (math.isfinite(value) and value > 0):
                # Flags carry no unit.
                raise UsageError(f"{name.removesuffix('_s')} is {value}", "Give a number above 0.")
        for name in ("warmup", "weight_decay", "ce_share", "l1_share", "confidence_share"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value >= 0):
                raise UsageError(f"{name} is {value}", "Give a number of at least 0.")
        if self.seed < 0:
            raise UsageError(f"seed is {self.seed}", "Give a whole number of at least 0.")
        if not 0 <= self.warmup < 1:
            raise UsageError(f"warmup is {self.warmup}", "Give a share of the run, below 1.")
        if self.row_tokens % PAGE_TOKENS:
            raise UsageError(f"row_tokens is {self.row_tokens}", f"Give a multiple of {PAGE_TOKENS}.")


@dataclass(frozen=True, slots=True)
class TextSettings:
    """How text is generated. `data`: a file of texts to train on; one that does not exist yet is written.

    Raises:
        UsageError: a value is outside what it may be.
    """

    prompts: str | None = None
    data: Path | None = None
    minutes: float | None = 2.0
    tokens: int | None = None
    temperatures: tuple[float, ...] = (1.0, 1.0, 1.0, 0.6, 0.0)
    max_tokens: int = 384
    concurrency: int | None = None

    def __post_init__(self) -> None:
        if not self.temperatures or not all(0 <= temperature <= 100 for temperature in self.temperatures):
            raise UsageError("temperatures must be numbers from 0 to 100", "Write, say, --temperatures 1,1,0.6,0.")
        if self.minutes is not None and not (math.isfinite(self.minutes) and self.minutes > 0):
            raise UsageError(f"text_minutes is {self.minutes}", "Give a number above 0.")
        if self.tokens is not None and self.tokens < 1:
            raise UsageError(f"text_tokens is {self.tokens}", "Give a whole number of at least 1.")
        if self.max_tokens < 2:
            raise UsageError(f"max_tokens is {self.max_tokens}", "Give a whole number of at least 2.")


@dataclass(frozen=True, slots=True)
class TrainJob:
    """One drafter to train: for which target, where to, how. `command` is what made it, for the card, as is `license`.

    `workers` write the text; this process trains.

    Raises:
        UsageError: the number format is none to train in, or the licence no identifier.
    """

    target: str
    output: Path
    shape: DrafterShape
    settings: TrainSettings
    text: TextSettings
    device: str = "auto"
    dtype: str = "auto"
    resume: bool = False
    overwrite: bool = False
    workers: Workers | None = None
    command: str = ""
    license: str | None = None  # of the drafter's weights, for the card

    def __post_init__(self) -> None:
        if self.license is not None and not _LICENSE_NAME.fullmatch(self.license):
            raise UsageError(f"license is {self.license!r}", "Give an identifier such as apache-2.0, or leave it out.")
        # Checks both names.
        EngineConfig(device=self.device, dtype=self.dtype)
        if self.dtype not in TRAINED_DTYPES:
            raise UsageError(f"dtype {self.dtype} cannot be trained in", f"Choose one of: {', '.join(TRAINED_DTYPES)}.")

    @property
    def data(self) -> Path:
        """Where the text is, or is to be."""
        return self.text.data or self.output / STATE_FOLDER / "text.jsonl"
