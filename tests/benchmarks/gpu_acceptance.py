"""How much of its drafts a drafter gets accepted, on files of prompts, through `decode`'s own job.

    python tests/benchmarks/gpu_acceptance.py PROMPTS.jsonl... [--drafter DIR] [--tokens 256] [--seeds 1] [--json FILE]

Every block is verified in full, at temperature 0 and 1. The length is the mean number of tokens a round, bonus token
included; "conditional" is the share of positions accepted among those whose predecessors all were.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from dspark.engine import Engine, EngineConfig, SamplingParams
from dspark.engine.jobs.decode_job import DecodeJob, decode_file
from dspark.engine.jobs.input_file import open_input
from dspark.engine.jobs.tokenizer import Tokenizer
from dspark.engine.models.aliases import DEFAULT_DRAFTER, DEFAULT_TARGET
from dspark.engine.models.resolve import resolve_drafter, resolve_target


class Silent:
    """A job's progress that nobody watches."""

    def __getattr__(self, name: str) -> Any:
        return lambda *args, **kwargs: None


def conditional(histogram: list[int]) -> list[float]:
    """Rounds by accepted tokens [G+1] -> acceptance of each position [G], of those that got so far."""
    reached = np.cumsum(histogram[::-1])[::-1]
    return (reached[1:] / np.maximum(reached[:-1], 1)).tolist()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("prompts", nargs="+", type=Path)
    parser.add_argument("--target", default=DEFAULT_TARGET)
    parser.add_argument("--drafter", default=DEFAULT_DRAFTER)
    parser.add_argument("--tokens", type=int, default=256)
    parser.add_argument("--seeds", type=int, default=1, help="runs at temperature 1")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    target = resolve_target(options.target)
    drafter = resolve_drafter(options.drafter)
    tokenizer = Tokenizer.load(target)
    engine = Engine(
        EngineConfig(target=str(target), drafter=str(drafter), device=options.device, max_context=4096),
        detokenizer=tokenizer,
    )
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        for temperature, seed in [(0.0, 0), *((1.0, seed) for seed in range(options.seeds))]:
            for path in options.prompts:
                name = f"{path.stem}-{temperature}-{seed}"
                job = DecodeJob(
                    input=open_input(str(path)),
                    output=Path(folder, f"{name}.jsonl"),
                    metrics=Path(folder, f"{name}.json"),
                    sampling=SamplingParams(temperature=temperature, max_tokens=options.tokens),
                )
                totals = decode_file(engine, tokenizer, job, Silent()).to_dict()
                spec = totals["spec"]
                rows.append(
                    {
                        "prompts": path.stem,
                        "temperature": temperature,
                        "seed": seed,
                        "length": spec["mean_acceptance_length"],
                        "conditional": conditional(spec["acceptance_histogram"]),
                        "tokens_per_s": totals["this_run"]["tokens_per_s"],
                    }
                )
    table = Table(title=f"{drafter}")
    for name in ("prompts", "T", "length", "conditional acceptance by position", "tok/s"):
        table.add_column(name)
    for temperature in (0.0, 1.0):
        some = [row for row in rows if row["temperature"] == temperature]
        for row in some:
            table.add_row(*_cells(row["prompts"], row))
        columns = ("length", "conditional", "tokens_per_s", "temperature")
        mean = {key: np.mean([row[key] for row in some], axis=0).tolist() for key in columns}
        table.add_row(*_cells("macro mean", mean), end_section=True)
    Console(width=130).print(table)
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1) + "\n")


def _cells(name: str, row: dict[str, Any]) -> tuple[str, ...]:
    by_position = " ".join(f"{share:.2f}" for share in row["conditional"])
    return name, f"{row['temperature']:.0f}", f"{row['length']:.3f}", by_position, f"{row['tokens_per_s']:,.0f}"


if __name__ == "__main__":
    main()
