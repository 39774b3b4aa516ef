"""Decoding speed on a CPU, as ratios within one run: transformers, our plain decoding, speculation, batches, dtypes.

    python tests/benchmarks/cpu_decode.py --prompts FILE.jsonl --rows 8 --max-tokens 96 --repeats 3

Prompts are rows with `turns` or `messages`; without --prompts those of `examples/prompts.jsonl` are used. Everything is
greedy and interleaved: each repeat runs every case once, and the table shows medians with their spread.

No speed is shown of wrong text: in float32 it has to be that of transformers, token for token. Narrower products depend
on how many rows they have, so there texts part where two logits are nearly equal; the table counts them, against plain
decoding in the same dtype. The last line is the most memory that `dspark decode` held over the prompts, 16 at once.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table
from transformers import AutoModelForCausalLM

from dspark.engine import Engine, EngineConfig, Request, SamplingParams
from dspark.engine.jobs.tokenizer import Tokenizer
from dspark.engine.models.resolve import DEFAULT_TARGET, resolve_target
from dspark.engine.scheduler.policies import parse_policy


def read_prompts(path: Path, tokenizer: Tokenizer, rows: int) -> list[list[int]]:
    """The first user turn of each row, through the chat template."""
    prompts = []
    for line in path.read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        messages = row.get("messages") or [{"role": "user", "content": row.get("turns", [row.get("prompt")])[0]}]
        if messages[-1]["content"]:
            prompts.append(tokenizer.encode_chat(messages))
    return prompts[:rows]


PEER = "transformers fp32, batch 1"
Texts = list[list[int]]


class Cases:
    """Named callables, each of which decodes the prompts once and returns (texts, seconds)."""

    def __init__(self, prompts: list[list[int]], max_tokens: int) -> None:
        self.prompts = prompts
        self.max_tokens = max_tokens
        self.runs: dict[str, Callable[[], tuple[Texts, float]]] = {}
        self.oracles: dict[str, str] = {}  # whose text each case has to give
        self.lengths: dict[str, float] = {}

    def add_transformers(self, folder: Path) -> None:
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)

        def run() -> tuple[Texts, float]:
            texts, start = [], time.perf_counter()
            for prompt in self.prompts:
                ids = torch.tensor([prompt])
                with torch.inference_mode():
                    out = model.generate(
                        ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=self.max_tokens
                    )
                texts.append(out[0, ids.shape[1] :].tolist())
            return texts, time.perf_counter() - start

        self.runs[PEER] = run

    def add_engines(self, dtype: str, policies: list[str], concurrencies: list[int]) -> None:
        base = Engine(EngineConfig(dtype=dtype, device="cpu", concurrency=1))
        for concurrency in concurrencies:
            for policy in policies:
                name = f"{dtype}, {policy}, batch {concurrency}"
                engine = Engine(
                    EngineConfig(dtype=dtype, device="cpu", concurrency=concurrency),
                    target=base.target,
                    drafter=base.drafter,
                    policy=parse_policy(policy, base.gamma),
                )
                self.runs[name] = self._run_of(name, engine)
                self.oracles[name] = PEER if dtype == "float32" else f"{dtype}, none, batch {concurrencies[0]}"

    def _run_of(self, name: str, engine: Engine) -> Callable[[], tuple[int, float]]:
        def run() -> tuple[Texts, float]:
            sampling = SamplingParams(max_tokens=self.max_tokens)
            repeats = -(-engine.concurrency // len(self.prompts))
            requests = [Request(i, p, sampling) for i, p in enumerate(self.prompts * repeats)]
            start = time.perf_counter()
            done = {c.index: c.token_ids for c in engine.generate(requests)}
            seconds = time.perf_counter() - start
            self.lengths[name] = engine.stats.spec.emitted / max(engine.stats.spec.rounds, 1)
            return [done[i] for i in range(len(done))], seconds

        return run


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prompts", type=Path, default=Path("examples/prompts.jsonl"))
    parser.add_argument("--rows", type=int, default=8)
    parser.add_argument("--max-tokens", type=int, default=96)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--dtypes", nargs="+", default=["float32", "bfloat16", "int8"])
    parser.add_argument("--policies", nargs="+", default=["none", *(f"fixed:{k}" for k in range(1, 8))])
    parser.add_argument("--concurrency", nargs="+", type=int, default=[1, 16])
    parser.add_argument("--json", type=Path, help="write the numbers here too")
    arguments = parser.parse_args()

    folder = resolve_target(DEFAULT_TARGET)
    tokenizer = Tokenizer.load(folder)
    assert tokenizer is not None
    cases = Cases(read_prompts(arguments.prompts, tokenizer, arguments.rows), arguments.max_tokens)
    cases.add_transformers(folder)
    for dtype in arguments.dtypes:
        cases.add_engines(dtype, arguments.policies, arguments.concurrency)

    speeds: dict[str, list[float]] = {name: [] for name in cases.runs}
    texts: dict[str, Texts] = {}
    console = Console()
    for repeat in range(arguments.repeats):
        for name, run in cases.runs.items():
            texts[name], seconds = run()
            speed = sum(map(len, texts[name])) / seconds
            speeds[name].append(speed)
            console.print(f"[dim]{repeat} {name}: {speed:.1f} tok/s[/dim]")
    parted = {name: differing(texts[name], texts[oracle]) for name, oracle in cases.oracles.items()}
    wrong = [name for name, rows in parted.items() if rows and cases.oracles[name] == PEER]
    assert not wrong, f"other texts than transformers gives: {wrong}"
    show(speeds, cases.lengths, parted, console)
    console.print(f"dspark decode, 16 at once: peak RSS {peak_rss_gb(arguments.prompts):.2f} GB")
    if arguments.json:
        arguments.json.write_text(json.dumps({"tokens_per_s": speeds, "acceptance_length": cases.lengths}, indent=2))


def differing(texts: Texts, oracle: Texts) -> int:
    """Rows whose text is another one; a case may decode the prompts several times over."""
    return sum(text != oracle[i % len(oracle)] for i, text in enumerate(texts))


def peak_rss_gb(prompts: Path) -> float:
    """Of a process of its own, which says it itself: what a parent sees of a child counts the parent's memory too."""
    program = """
import atexit, re, sys
from dspark.cli.main import main
status = lambda: open("/proc/self/status").read()
atexit.register(lambda: print(re.search(r"VmHWM:\\s+(\\d+) kB", status())[1]))
main()
"""
    with tempfile.TemporaryDirectory() as folder:
        options = ["--output", f"{folder}/out.jsonl", "--concurrency", "16", "--max-tokens", "96", "--device", "cpu"]
        command = [sys.executable, "-c", program, "decode", "--input", str(prompts), "--quiet", *options]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
    return int(done.stdout.split()[-1]) / 2**20


def show(speeds: dict[str, list[float]], lengths: dict[str, float], parted: dict[str, int], console: Console) -> None:
    """Medians, spreads, and each case against transformers and against our own plain decoding at batch 1."""
    medians = {name: statistics.median(values) for name, values in speeds.items()}
    peer = medians[PEER]
    columns = ("tok/s", "min-max", "x transformers", "x plain fp32 batch 1", "acceptance length", "texts that part")
    table = Table("case", *columns)
    plain = medians.get("float32, none, batch 1", float("nan"))
    for name, value in medians.items():
        spread = f"{min(speeds[name]):.1f}-{max(speeds[name]):.1f}"
        length = f"{lengths[name]:.2f}" if name in lengths else "-"
        ratios = (f"{value / peer:.2f}", f"{value / plain:.2f}")
        table.add_row(name, f"{value:.1f}", spread, *ratios, length, str(parted.get(name, "-")))
    console.print(table)


if __name__ == "__main__":
    main()
