"""Options of `dspark decode` alone."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from dspark.cli.options import DECODING, FILES, NO_VALUE

Input = Annotated[
    str | None,
    typer.Option(
        "--input",
        "-i",
        metavar="FILE|-",
        help="JSONL, one request a line (prompt, prompt_token_ids, messages, turns, conversations, or OpenAI "
        "Batch); may be gzipped; `-` is stdin. Required unless --selftest is given.",
        show_default=False,
        rich_help_panel=FILES,
    ),
]
Output = Annotated[
    Path | None,
    typer.Option(
        "--output",
        "-o",
        metavar="FILE",
        help="JSONL, one answer a line, in input order. Default: decode.jsonl in the work directory.",
        show_default=False,
        rich_help_panel=FILES,
    ),
]
Metrics = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="JSON, counts and speeds of the run. Default: beside the output, NAME.metrics.json for NAME.jsonl and "
        "NAME-metrics.json for any other NAME.",
        show_default=False,
        rich_help_panel=FILES,
    ),
]
Traces = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="Record every round for `calibrate` and `report`, as .parquet or .csv; slower. Default: none.",
        show_default=False,
        rich_help_panel=FILES,
    ),
]
Rounds = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="Write a row for every round of the engine (requests, packed tokens, bucket, expected and real tokens, "
        "predicted and measured seconds), as .parquet or .csv. Default: none; the metrics hold totals by bucket.",
        show_default=False,
        rich_help_panel=FILES,
    ),
]
TokenIds = Annotated[
    bool,
    typer.Option(
        "--token-ids",
        metavar=NO_VALUE,
        help="Add `token_ids` to each output row; with --all-turns those of the last answer. Default: only to rows "
        "that were given as token ids.",
        rich_help_panel=FILES,
    ),
]
AllTurns = Annotated[
    bool,
    typer.Option(
        "--all-turns",
        metavar=NO_VALUE,
        help="Ask every turn of a `turns` row, with the model's own answers in between; `turns` of the output row "
        "holds them all, `text` and `token_ids` the last. Default: ask the first.",
        rich_help_panel=DECODING,
    ),
]
Selftest = Annotated[
    bool,
    typer.Option(
        "--selftest",
        metavar=NO_VALUE,
        help="Decode no file, but check that speculation leaves the text of this target and drafter as it is, as "
        "`dspark selftest` does. Default: decode.",
        rich_help_panel=DECODING,
    ),
]
