"""Options that several commands share: one name, one meaning, one help text."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from dspark.cli.config_file import apply_config

MODELS, DECODING, FILES, GENERAL = "Models", "Decoding", "Files", "General"

Target = Annotated[
    str,
    typer.Option(
        metavar="PATH|HUB_ID|ALIAS",
        help="Model whose text is produced: a local folder, a hub id, or the built-in `smollm2-135m`.",
        rich_help_panel=MODELS,
    ),
]
Drafter = Annotated[
    str | None,
    typer.Option(
        metavar="PATH|HUB_ID|ALIAS|none",
        help="Drafter that goes with the target. Default: the built-in one with the built-in target, else `none`.",
        show_default=False,
        rich_help_panel=MODELS,
    ),
]
Device = Annotated[
    str, typer.Option(metavar="auto|cpu|cuda", help="`auto`: a GPU if there is one.", rich_help_panel=MODELS)
]
Dtype = Annotated[
    str,
    typer.Option(
        metavar="auto|float32|bfloat16|float16|int8",
        help="Number format of the weights. `auto`: float32 on a CPU, bfloat16 on a GPU.",
        rich_help_panel=MODELS,
    ),
]
LoadFormat = Annotated[
    str,
    typer.Option(
        metavar="auto|dummy",
        help="`dummy`: random weights; --target is then a folder with a config.json or a shape that comes with dspark, "
        "and the drafter's shape is derived from it unless --drafter is a folder or `none`.",
        rich_help_panel=MODELS,
    ),
]
Policy = Annotated[
    str | None,
    typer.Option(
        metavar="none|fixed:K|threshold:T|threshold-position:T",
        help="How many drafted tokens are verified. Default: all (`fixed:γ`) with a drafter, `none` without.",
        show_default=False,
        rich_help_panel=DECODING,
    ),
]
Acceptance = Annotated[
    str,
    typer.Option(
        metavar="rejection|coupled",
        help="`rejection` keeps the target's distribution; `coupled` keeps the very text that plain sampling gives.",
        rich_help_panel=DECODING,
    ),
]
Concurrency = Annotated[
    int | None,
    typer.Option(
        min=1,
        help="Requests decoded at once. Default: 16 on a CPU, 256 on a GPU.",
        show_default=False,
        rich_help_panel=DECODING,
    ),
]
MaxTokens = Annotated[
    int, typer.Option(min=1, help="Most tokens of an answer, where a row does not say.", rich_help_panel=DECODING)
]
Temperature = Annotated[
    float, typer.Option(min=0, help="0 = greedy, where a row does not say.", rich_help_panel=DECODING)
]
TopP = Annotated[
    float, typer.Option(help="Probability mass that is sampled from, in (0, 1]; 1 = off.", rich_help_panel=DECODING)
]
TopK = Annotated[int, typer.Option(help="Tokens that are sampled from; 0 = off.", rich_help_panel=DECODING)]
Stop = Annotated[
    list[str] | None,
    typer.Option(help="Text that ends an answer; may be given several times. Default: none.", rich_help_panel=DECODING),
]
IgnoreEos = Annotated[
    bool, typer.Option("--ignore-eos", help="Go on past the model's own end tokens.", rich_help_panel=DECODING)
]
Seed = Annotated[int, typer.Option(help="Seed of rows that bring none.", rich_help_panel=DECODING)]
Workdir = Annotated[
    Path, typer.Option(metavar="FOLDER", help="Where files go that are not named.", rich_help_panel=FILES)
]
Config = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="TOML file of option values, `max-tokens = 64`; flags win. Default: none.",
        callback=apply_config,
        is_eager=True,
        rich_help_panel=GENERAL,
    ),
]
Json = Annotated[bool, typer.Option("--json", help="One JSON document on stdout.", rich_help_panel=GENERAL)]
Quiet = Annotated[bool, typer.Option("--quiet", help="Nothing on stderr but errors.", rich_help_panel=GENERAL)]
