"""Decoding speed of the engine on a GPU, against what this device copies and multiplies in the same run.

    python tests/benchmarks/gpu_decode.py [--only smol,arrivals,spec,qwen,ragged,start,kernels,peers] [--json FILE]

Weights are random (`load_format` dummy): speed does not depend on them, acceptance does, so rounds of `fixed:7` are
timed as rounds, not as tokens. "GPU" is the median of graph replays between events, "wall" what a caller of
`Engine.generate` waits a step, prefill taken off. `floor` is the time to read the weights once at the copy rate, or to
do the step's products at the matrix rate, whichever is longer. A section that fails prints why and ends nothing.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
import traceback
from dataclasses import asdict
from pathlib import Path

import numpy as np
import torch
from gpu_breakdown import kernels, peers
from gpu_engines import (
    Result,
    floor_of,
    gpu_ms,
    make_engine,
    release,
    staged,
    step_bytes_and_flops,
    wall_ms_a_round,
)
from gpu_timing import MachineRates, measure_machine
from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).parents[1]))
from staged_batch import StagedBatch, fill_caches

from dspark.engine import Engine, EngineConfig, Request, SamplingParams

NEW_TOKENS = 256
# Milliseconds a step that must be met, and what vLLM 0.26 took offline on such a card.
WALL_MARKS = {1: (0.95, 1.47), 64: (1.7, 3.50), 256: (2.5, 4.99)}


def arrivals(rates: MachineRates) -> list[Result]:
    """Requests of unequal length that come and go, against the same tokens in rounds that nobody joins or leaves."""
    rng = np.random.default_rng(0)
    results = []
    for concurrency in (64, 256):
        engine = make_engine(concurrency=concurrency)
        ms, _, _ = wall_ms_a_round(engine, concurrency, NEW_TOKENS)
        rows = []
        for i in range(6 * concurrency):
            prompt = rng.integers(3, 40_000, rng.integers(30, 200)).tolist()
            rows.append(Request(i, prompt, SamplingParams(max_tokens=int(rng.integers(64, 384)), ignore_eos=True)))
        times = []
        for _ in range(2):  # the first captures the graphs of prompts
            start = time.perf_counter()
            tokens = sum(len(completion.token_ids) for completion in engine.generate(rows))
            times.append(time.perf_counter() - start)
        ideal_s = tokens / concurrency * ms / 1e3
        note = f"{tokens / times[-1]:,.0f} tok/s; first run {times[0]:.2f} s"
        case = f"{len(rows)} requests, {concurrency} at once"
        results.append(Result("arrivals", case, times[-1] * 1e3, "full rounds", times[-1] / ideal_s, None, note))
        del engine
        release()
    return results


def smol(rates: MachineRates) -> list[Result]:
    """Plain decoding."""
    results = []
    for concurrency, (mark, theirs) in WALL_MARKS.items():
        engine = make_engine(concurrency=concurrency)
        floor = floor_of(engine, concurrency, rates)
        ms, over_all, prefill = wall_ms_a_round(engine, concurrency, NEW_TOKENS)
        note = f"with prefill {over_all:.3f} ms; prefill {prefill:.1f} ms; vLLM {theirs} ms"
        results.append(Result("smol", f"wall, {concurrency} at once", ms, "floor", ms / floor, mark / floor, note))
        fill_caches(engine)
        for context in (256, 4096):
            batch = staged(engine, concurrency, context)
            step = gpu_ms(batch.target)
            against, ratio = ("floor", step / floor) if context == 256 else ("", None)
            results.append(Result("smol", f"target GPU, {concurrency} x {context}", step, against, ratio))
        check = gpu_ms(staged(engine, concurrency, 256).verification)
        results.append(Result("smol", f"verification GPU, {concurrency}", check))
        del engine
        release()
    return results


def spec(rates: MachineRates) -> list[Result]:
    """Rounds of fixed:7, and their parts."""
    results = []
    for concurrency in (1, 64, 256):
        engine = make_engine(concurrency=concurrency, policy="fixed:7")
        ms, _, _ = wall_ms_a_round(engine, concurrency, 64)
        fill_caches(engine)
        one_token = gpu_ms(staged(engine, concurrency, 256).target)
        full = staged(engine, concurrency, 256, 7)
        target, draft, check = gpu_ms(full.target), gpu_ms(full.draft), gpu_ms(full.verification)
        parts = target + draft + check
        results += [
            Result("spec", f"wall a round, {concurrency}", ms, "its GPU parts", ms / parts),
            Result("spec", f"target GPU, {concurrency} x 8 tokens", target),
            Result("spec", f"verification GPU, {concurrency}", check, "target", check / target),
            Result(
                "spec", f"draft GPU, {concurrency}", draft, "target of 1 token", draft / one_token,
                0.35 if concurrency == 1 else None,
            ),
            Result("spec", f"sampled draft GPU, {concurrency}", gpu_ms(lambda b=full: b.draft(sampled=True))),
        ]  # fmt: skip
        del engine
        release()
        if concurrency == 64:
            short = make_engine(concurrency=concurrency, policy="fixed:1")
            fill_caches(short)
            one_step = gpu_ms(staged(short, concurrency, 256).draft)
            # The head's product over seven positions instead of one is part of the difference.
            note = "six more positions of head and Markov walk"
            results.append(Result("spec", "draft, 7 steps over 1", draft, "1 step", draft / one_step, None, note))
            del short
            release()
    return results


def ragged(rates: MachineRates) -> list[Result]:
    """Lengths drawn from 1 to 8 tokens against equal ones of the same total."""
    engine = make_engine(concurrency=64, policy="fixed:7")
    fill_caches(engine)
    rng = np.random.default_rng(0)
    lengths = rng.integers(0, 8, 64)
    while int(lengths.sum()) % 64:
        lengths[rng.integers(64)] = rng.integers(0, 8)
    results = []
    for context in (256, 4096):
        starts = np.full(64, context)
        even = np.full(64, int(lengths.sum()) // 64)
        mixed, equal = (
            gpu_ms(StagedBatch.on(engine, starts, each).target) for each in (lengths, even)
        )  # fmt: skip
        case = f"64 x {context}, {64 + int(lengths.sum())} tokens"
        results.append(Result("ragged", case, mixed, "equal lengths", mixed / equal, 1.05))
    return results


def qwen(rates: MachineRates) -> list[Result]:
    """Qwen3-4B's shape."""
    engine = make_engine("qwen3-4b", concurrency=256)
    fill_caches(engine)
    results = []
    num_bytes, flops = step_bytes_and_flops(engine.target.config, 256)
    read = num_bytes / rates.copy_bytes_per_s * 1e3
    multiply = flops / rates.matmul_flops_per_s * 1e3
    one, many = gpu_ms(staged(engine, 1, 256).target), gpu_ms(staged(engine, 256, 256).target)
    results.append(Result("qwen", "target GPU, 1 x 256", one, "weights read", one / read, 1.35))
    note = f"{multiply / many:.0%} of the matrix rate"
    results.append(Result("qwen", "target GPU, 256 x 256", many, "products", many / multiply, 1 / 0.7, note))
    results.append(Result("qwen", "wall, 1 at once", wall_ms_a_round(engine, 1, 64)[0]))
    results.append(Result("qwen", "wall, 256 at once", wall_ms_a_round(engine, 256, 64)[0]))
    del engine
    release()
    engine = make_engine("qwen3-4b", concurrency=1, policy="fixed:7")
    fill_caches(engine)
    draft = gpu_ms(staged(engine, 1, 256, 7).draft)
    results.append(Result("qwen", "draft GPU, 1", draft, "target of 1 token", draft / one, 0.25))
    del engine
    release()
    return results


def start(rates: MachineRates) -> list[Result]:
    """Start-up, and the memory that graphs add."""
    results = []
    for concurrency in (64, 512):
        began = time.perf_counter()
        engine, capture_s = timed_engine(concurrency)
        whole_ms = (time.perf_counter() - began) * 1e3
        assert engine.graphs is not None
        note = f"{engine.graphs.num_captured} graphs in {capture_s:.2f} s"
        mark = 15e3 if concurrency == 64 else None
        results.append(Result("start", f"engine, {concurrency} at once", whole_ms, mark=mark, note=note))
        for name, size in engine.memory_report().items():
            note = f"{size / 2**20:.0f} MiB"
            results.append(Result("start", f"{name}, {concurrency} at once", None, note=note))
        del engine
        release()
    return results


def timed_engine(concurrency: int) -> tuple[Engine, float]:
    """An engine of fixed:7, and the seconds that capturing its graphs took."""
    reports: list[float] = []

    def progress(what: str, done: int, total: int) -> None:
        reports.append(time.perf_counter())

    engine = Engine(
        EngineConfig(target="smollm2-135m", load_format="dummy", device="cuda", concurrency=concurrency),
        progress=progress,
    )
    return engine, reports[-1] - reports[0]


SECTIONS = {
    section.__name__: section for section in (smol, arrivals, spec, ragged, qwen, start, kernels, peers)
}  # fmt: skip
DEFAULT = ("smol", "arrivals", "spec", "ragged", "qwen", "start", "kernels")


def table_of(results: list[Result], rates: MachineRates) -> Table:
    title = (
        f"{torch.cuda.get_device_name()}: copy {rates.copy_bytes_per_s / 1e12:.2f} TB/s, bf16 "
        f"{rates.matmul_flops_per_s / 1e12:.0f} TFLOP/s, torch {torch.__version__}"
    )
    table = Table(title=title)
    for name in ("section", "case", "ms", "ratio", "to", "mark", "", "note"):
        table.add_column(name, justify="right" if name in ("ms", "ratio", "mark") else "left")
    for row in results:
        table.add_row(
            row.section,
            row.case,
            "" if row.ms is None else f"{row.ms:.3f}",
            "" if row.ratio is None else f"{row.ratio:.2f}",
            row.against,
            "" if row.mark is None else f"{row.mark:.2f}",
            row.verdict,
            row.note,
        )
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default=",".join(DEFAULT), help="sections, separated by commas")
    parser.add_argument("--json", type=Path, help="write the results there too")
    arguments = parser.parse_args()
    console = Console(width=200)
    rates = measure_machine()
    release()
    results: list[Result] = []
    for name in arguments.only.split(","):
        began = time.perf_counter()
        try:
            results += SECTIONS[name](rates)
        except Exception:
            console.print(f"[red]section {name} failed[/red]")
            console.print(traceback.format_exc(limit=-6), markup=False)
        release()
        console.print(f"{name}: {time.perf_counter() - began:.1f} s")
        if arguments.json is not None:
            arguments.json.write_text(json.dumps([asdict(row) for row in results], indent=1, default=str))
    console.print(table_of(results, rates))


if __name__ == "__main__":
    main()
