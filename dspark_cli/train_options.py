"""Options of `dspark train` alone."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from dspark.cli.options import FILES

TEXT, SHAPE, TRAINING = "Text", "Drafter", "Training"

Output = Annotated[
    Path | None,
    typer.Option(
        "--output",
        "-o",
        metavar="FOLDER",
        help="Where the drafter goes; `--drafter FOLDER` decodes with it. Required.",
        show_default=False,
        rich_help_panel=FILES,
    ),
]
Prompts = Annotated[
    str | None,
    typer.Option(
        metavar="FILE",
        help="JSONL of prompts that the target answers, in any form that `decode` takes. Half of the text answers "
        "them, the other half questions that the target asks itself. Default: its own questions alone.",
        show_default=False,
        rich_help_panel=TEXT,
    ),
]
Data = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="JSONL of texts to train on; written if it does not exist. Default: training/text.jsonl in --output.",
        show_default=False,
        rich_help_panel=TEXT,
    ),
]
TextMinutes = Annotated[
    float, typer.Option(metavar="MINUTES", help="Minutes in which the target writes.", rich_help_panel=TEXT)
]
TextTokens = Annotated[
    int | None,
    typer.Option(
        metavar="TOKENS",
        help="Tokens after which the target stops writing, if --text-minutes leave so many. Default: no such end.",
        show_default=False,
        rich_help_panel=TEXT,
    ),
]
Temperatures = Annotated[
    str,
    typer.Option(metavar="T[,T…]", help="Temperatures of the text, taken in turn.", rich_help_panel=TEXT),
]
MaxTokens = Annotated[
    int,
    typer.Option(
        metavar="TOKENS", help="Most tokens of an answer; a question has 192 at the most.", rich_help_panel=TEXT
    ),
]
Layers = Annotated[int, typer.Option(metavar="COUNT", help="Layers of the backbone.", rich_help_panel=SHAPE)]
BlockSize = Annotated[int, typer.Option(metavar="TOKENS", help="Drafted tokens of a block (γ).", rich_help_panel=SHAPE)]
MarkovHead = Annotated[
    str, typer.Option(metavar="vanilla|gated|rnn|none", help="Kind of Markov head.", rich_help_panel=SHAPE)
]
MarkovRank = Annotated[int, typer.Option(metavar="RANK", help="Rank of the Markov head.", rich_help_panel=SHAPE)]
FeatureLayers = Annotated[
    str | None,
    typer.Option(
        metavar="L[,L…]",
        help="Target layers whose states the drafter reads; -1 is the embedding. Default: five, spread evenly.",
        show_default=False,
        rich_help_panel=SHAPE,
    ),
]
MaskTokenId = Annotated[
    int | None,
    typer.Option(
        metavar="TOKEN",
        help="Token of slots that are to be filled. Default: one that no text holds.",
        show_default=False,
        rich_help_panel=SHAPE,
    ),
]
Minutes = Annotated[
    float | None,
    typer.Option(
        "--minutes",
        metavar="MINUTES",
        help="Minutes of training, the text's not counted. Default: 10, unless --steps is given.",
        show_default=False,
        rich_help_panel=TRAINING,
    ),
]
Steps = Annotated[
    int | None,
    typer.Option(
        metavar="COUNT",
        help="Steps of training, in place of minutes. Default: none.",
        show_default=False,
        rich_help_panel=TRAINING,
    ),
]
Rows = Annotated[int, typer.Option(metavar="COUNT", help="Rows of a step.", rich_help_panel=TRAINING)]
RowTokens = Annotated[
    int, typer.Option(metavar="TOKENS", help="Tokens of a row, which whole texts fill.", rich_help_panel=TRAINING)
]
Anchors = Annotated[
    int, typer.Option(metavar="COUNT", help="Blocks that are drafted in a row.", rich_help_panel=TRAINING)
]
Optimizer = Annotated[
    str,
    typer.Option(
        metavar="adamw|muon",
        help="`muon`: Muon for the projections, AdamW for the rest.",
        rich_help_panel=TRAINING,
    ),
]
LearningRate = Annotated[
    float | None,
    typer.Option(
        metavar="NUMBER",
        help="Highest learning rate. Default: 0.003, or 0.0015 with `--optimizer adamw`.",
        show_default=False,
        rich_help_panel=TRAINING,
    ),
]
WeightDecay = Annotated[
    float, typer.Option(metavar="NUMBER", help="Weight decay of the projections.", rich_help_panel=TRAINING)
]
EvaluateEvery = Annotated[
    float,
    typer.Option(
        metavar="SECONDS", help="Seconds between measurements of the held-out text.", rich_help_panel=TRAINING
    ),
]
Seed = Annotated[
    int,
    typer.Option(metavar="NUMBER", help="Seed of text, weights, anchors and order.", rich_help_panel=TRAINING),
]
License = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="Licence of the drafter's weights that its card states, such as `apache-2.0`. Default: none is stated.",
        show_default=False,
        rich_help_panel=FILES,
    ),
]
