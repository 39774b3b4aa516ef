"""Decoding with `--drafter ngram` on a CPU against plain decoding, for each file of prompts.

    python tests/benchmarks/cpu_ngram.py PROMPTS.jsonl... [--rows 24] [--max-tokens 96] [--concurrency 8] [--repeats 3]

The pair is profiled first, so that `async` plans by this machine. Then every policy decodes the same prompts, greedy,
in turn; the text of every row has to be that of plain decoding. Answers are of `--max-tokens` on average, from half to
one and a half times as many, drawn once: were they all as long, plain decoding alone would end them together and keep
its batches full to the last, which no file of real answers lets it do. `--same-length` does that all the same.

Speeds are tokens a second of wall time against `none` of the same repeat: the table shows the median ratio, and the
lowest and the highest of them. Needs an otherwise idle machine.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from cpu_decode import read_prompts
from rich.console import Console
from rich.table import Table

from dspark.engine import Engine, EngineConfig, Request, SamplingParams
from dspark.engine.jobs.tokenizer import Tokenizer
from dspark.engine.models.resolve import DEFAULT_TARGET, resolve_target

POLICIES = ("none", "fixed:7", "threshold:0.5", "async")
CODE = "import sys; from dspark.cli.main import main; sys.exit(main())"


def profile(folder: Path, concurrency: int) -> str:
    """Measured by the command itself, in a process of its own."""
    options = ["--drafter", "ngram", "--device", "cpu", "--concurrency", str(concurrency), "--workdir", str(folder)]
    subprocess.run([sys.executable, "-c", CODE, "profile", *options, "--quiet"], check=True)
    return str(folder / "profile.json")


def answer_lengths(count: int, mean: int, *, same: bool) -> list[int]:
    """Most tokens of each answer."""
    if same:
        return [mean] * count
    generator = random.Random(0)
    return [generator.randint(mean // 2, mean + mean // 2) for _ in range(count)]


def decode(engine: Engine, prompts: list[list[int]], limits: list[int]) -> tuple[list[list[int]], float]:
    """Texts in order, of at most `limits` tokens each, and seconds."""
    requests = [
        Request(i, prompt, SamplingParams(max_tokens=limit))
        for i, (prompt, limit) in enumerate(zip(prompts, limits, strict=True))
    ]
    started = time.perf_counter()
    texts = {done.index: done.token_ids for done in engine.generate(requests)}
    return [texts[i] for i in range(len(prompts))], time.perf_counter() - started


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("prompts", type=Path, nargs="+")
    parser.add_argument("--rows", type=int, default=24)
    parser.add_argument("--max-tokens", type=int, default=96)
    parser.add_argument("--same-length", action="store_true", help="all answers of --max-tokens")
    parser.add_argument("--concurrency", type=int, default=8)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--json", type=Path, help="write the numbers here too")
    arguments = parser.parse_args()

    tokenizer = Tokenizer.load(resolve_target(DEFAULT_TARGET))
    assert tokenizer is not None
    with tempfile.TemporaryDirectory() as folder:
        measured = profile(Path(folder), arguments.concurrency)
        target = Engine(EngineConfig(device="cpu", policy="none")).target
        engines = {
            policy: Engine(
                EngineConfig(
                    drafter="ngram", device="cpu", concurrency=arguments.concurrency, policy=policy, profile=measured
                ),
                target=target,
            )
            for policy in POLICIES
        }
    console = Console()
    table = Table("prompts", "policy", "tokens a round", "x none", "lowest-highest")
    numbers: dict[str, dict[str, object]] = {}
    for path in arguments.prompts:
        prompts = read_prompts(path, tokenizer, arguments.rows)
        limits = answer_lengths(len(prompts), arguments.max_tokens, same=arguments.same_length)
        ratios: dict[str, list[float]] = {policy: [] for policy in POLICIES}
        for repeat in range(arguments.repeats):
            console.print(f"[dim]{path.stem}, repeat {repeat + 1}, load {os.getloadavg()[0]:.2f}[/dim]")
            plain, plain_s = decode(engines["none"], prompts, limits)
            for policy in POLICIES[1:]:
                texts, seconds = decode(engines[policy], prompts, limits)
                assert texts == plain, f"{policy} changes the text"
                ratios[policy].append(plain_s / seconds)
        for policy in POLICIES[1:]:
            spec = engines[policy].stats.spec
            length, ratio = spec.emitted / spec.rounds, statistics.median(ratios[policy])
            spread = f"{min(ratios[policy]):.2f}-{max(ratios[policy]):.2f}"
            table.add_row(path.stem, policy, f"{length:.2f}", f"{ratio:.2f}", spread)
            numbers.setdefault(path.stem, {})[policy] = {"tokens_per_round": length, "ratios": ratios[policy]}
    console.print(table)
    if arguments.json:
        arguments.json.write_text(json.dumps(numbers, indent=2))


if __name__ == "__main__":
    main()
