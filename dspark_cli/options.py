"""Options that several commands share: one name, one meaning, one help text."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from dspark.cli.config_file import apply_config
from dspark.engine.jobs.workdir_names import DEFAULT_WORKDIR, EXPORT, REPORT

MODELS, DECODING, WORKERS, FILES, GENERAL = "Models", "Decoding", "Workers", "Files", "General"

# A flag takes no value, and its help shows none.
NO_VALUE = ""

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
        metavar="PATH|HUB_ID|ALIAS",
        help="Drafter that goes with the target, or `none`. `ngram` goes with any: it looks drafts up in the text so "
        "far. Default: the built-in one with the built-in target, else `none`.",
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
        metavar="FORMAT",
        help="Number format of the weights: `float32`, `bfloat16`, `float16`, `int8` (on a CPU), or `auto`, which is "
        "float32 on a CPU and bfloat16 on a GPU.",
        rich_help_panel=MODELS,
    ),
]
LoadFormat = Annotated[
    str,
    typer.Option(
        metavar="auto|dummy",
        help="`dummy`: random weights; --target is then a folder with a config.json or a shape that comes with dspark, "
        "and the drafter's shape is derived from it unless --drafter is a folder, `ngram` or `none`.",
        rich_help_panel=MODELS,
    ),
]
Policy = Annotated[
    str | None,
    typer.Option(
        "--policy",
        metavar="POLICY",
        help="How many drafted tokens are verified: `async` or `causal` (as many as pay for their time, by the profile "
        "in the work directory), `none`, `fixed:K` (the first K), `threshold:T` or `threshold-position:T` (T a "
        "probability). Default: `async` with a drafter and a profile, all (`fixed:γ`) with a drafter, `none` without.",
        show_default=False,
        rich_help_panel=DECODING,
    ),
]
NoAdapt = Annotated[
    bool,
    typer.Option(
        "--no-adapt",
        metavar=NO_VALUE,
        help="Plan by the profile alone. Default: this run's own rounds correct its times.",
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
DraftTopK = Annotated[
    int | None,
    typer.Option(
        metavar="TOKENS",
        help="Draft sampled rows from the drafter's likeliest tokens alone; the text keeps its distribution, and what "
        "is kept for verification shrinks. Default: from all.",
        show_default=False,
        rich_help_panel=DECODING,
    ),
]
Concurrency = Annotated[
    int | None,
    typer.Option(
        metavar="REQUESTS",
        help="Requests decoded at once. Default: 16 on a CPU, 256 on a GPU.",
        show_default=False,
        rich_help_panel=DECODING,
    ),
]
MaxTokens = Annotated[
    int,
    typer.Option(
        metavar="TOKENS", help="Most tokens of an answer, where a row does not say.", rich_help_panel=DECODING
    ),
]
Temperature = Annotated[
    float,
    typer.Option(
        metavar="NUMBER", help="Sampling temperature, where a row does not say; 0 is greedy.", rich_help_panel=DECODING
    ),
]
TopP = Annotated[
    float,
    typer.Option(
        metavar="SHARE",
        help="Probability mass that is sampled from, where a row does not say; above 0 and up to 1 (off).",
        rich_help_panel=DECODING,
    ),
]
TopK = Annotated[
    int,
    typer.Option(
        metavar="TOKENS",
        help="Likeliest tokens that are sampled from, where a row does not say; 0 or -1 is off.",
        rich_help_panel=DECODING,
    ),
]
Stop = Annotated[
    list[str] | None,
    typer.Option(
        metavar="TEXT",
        help="Text that ends an answer, where a row does not say; may be given several times. Default: none.",
        show_default=False,
        rich_help_panel=DECODING,
    ),
]
IgnoreEos = Annotated[
    bool,
    typer.Option(
        "--ignore-eos",
        metavar=NO_VALUE,
        help="Go on past the model's own end tokens. Default: stop there.",
        rich_help_panel=DECODING,
    ),
]
Seed = Annotated[int, typer.Option(metavar="NUMBER", help="Seed of rows that bring none.", rich_help_panel=DECODING)]
OutputFormat = Annotated[
    str,
    typer.Option(
        metavar="dspark|openai-batch",
        help="Form of an output line: dspark's own, or a line of an OpenAI Batch output file.",
        rich_help_panel=FILES,
    ),
]
NumWorkers = Annotated[
    int | None,
    typer.Option(
        metavar="N",
        help="Decode by N workers over Ray, each with the whole pair and, where there are GPUs, a GPU of its own. "
        "Default: this process alone; with --ray one a GPU, or one a machine without any.",
        show_default=False,
        rich_help_panel=WORKERS,
    ),
]
RayAddress = Annotated[
    str | None,
    typer.Option(
        "--ray",
        metavar="ADDRESS",
        help="Ray cluster to decode on, such as `auto` or `10.0.0.1:6379`. Default: --num-workers start Ray here.",
        show_default=False,
        rich_help_panel=WORKERS,
    ),
]
Workdir = Annotated[
    Path, typer.Option(metavar="FOLDER", help="Where files go that are not named.", rich_help_panel=FILES)
]


def _folder_option(name: str) -> Any:
    """--output of a command that fills a folder of this name in the work directory."""
    return typer.Option(
        "--output",
        "-o",
        metavar="FOLDER",
        help=f"Where the files go; earlier ones are replaced. Default: {DEFAULT_WORKDIR / name}, or {name} in "
        "--workdir.",
        show_default=False,
        rich_help_panel=FILES,
    )


ExportFolder = Annotated[Path | None, _folder_option(EXPORT)]
ReportFolder = Annotated[Path | None, _folder_option(REPORT)]
Resume = Annotated[
    bool,
    typer.Option(
        "--resume",
        metavar=NO_VALUE,
        help="Go on with an interrupted run. Default: refuse what one has left.",
        rich_help_panel=FILES,
    ),
]
Overwrite = Annotated[
    bool,
    typer.Option(
        "--overwrite",
        metavar=NO_VALUE,
        help="Replace an existing output. Default: refuse it.",
        rich_help_panel=FILES,
    ),
]
ReplaceOthers = Annotated[
    bool,
    typer.Option(
        "--overwrite",
        metavar=NO_VALUE,
        help="Replace files of other models in the work directory too. Default: those of the same models alone.",
        rich_help_panel=FILES,
    ),
]
Config = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="TOML file of option values, such as `max-tokens = 64`; flags win. Default: none.",
        callback=apply_config,
        is_eager=True,
        rich_help_panel=GENERAL,
    ),
]
Json = Annotated[
    bool,
    typer.Option("--json", metavar=NO_VALUE, help="Print one JSON document on stdout.", rich_help_panel=GENERAL),
]
Quiet = Annotated[
    bool, typer.Option("--quiet", metavar=NO_VALUE, help="Nothing on stderr but errors.", rich_help_panel=GENERAL)
]
