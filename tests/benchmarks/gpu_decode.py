"""Decoding speed of the engine on a GPU, against what this device copies and multiplies in the same run.

    python tests/benchmarks/gpu_decode.py [--only smol,arrivals,spec,qwen,ragged,start,kernels,peers] [--json FILE]

Weights are random (`load_format` dummy): speed does not depend on them, acceptance does, so rounds of `fixed:7` are
timed as rounds, not as tokens. "GPU" is the median of graph replays between events, "wall" what a caller of
`Engine.generate` waits a step, prefill taken off. `floor` is the time to read the weights once at the copy rate, or to
do the step's products at the matrix rate, whichever is longer. A section that fails prints why and ends nothing.
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
from gpu_timing import MachineRates, measure_machine
from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).parents[1]))
from staged_batch import StagedBatch, fill_caches

from dspark.engine import Engine, EngineConfig, Request, SamplingParams
from dspark.engine.models.model_config import ModelConfig

PROMPT_TOKENS, NEW_TOKENS = 64, 256
PROMPT = 3 + np.arange(PROMPT_TOKENS) * 7
# Milliseconds a step that must be met, and what vLLM 0.26 took offline on such a card.
WALL_MARKS = {1: (0.95, 1.47), 64: (1.7, 3.50), 256: (2.5, 4.99)}


@dataclass(frozen=True, slots=True)
class Result:
    section: str
    case: str
    ms: float | None
    against: str = ""  # what the ratio is to
    ratio: float | None = None
    mark: float | None = None  # the ratio, or the milliseconds if there is none, that must not be exceeded
    note: str = ""

    @property
    def verdict(self) -> str:
        value = self.ms if self.ratio is None else self.ratio
        if self.mark is None or value is None:
            return ""
        return "ok" if value <= self.mark else "SHORT"


def make_engine(target: str = "smollm2-135m", **settings: object) -> Engine:
    settings = {"policy": "none", "max_context": 8192 if target.startswith("smol") else 4096} | settings
    return Engine(EngineConfig(target=target, load_format="dummy", device="cuda", **settings))  # type: ignore[arg-type]


def release() -> None:
    """Engines hold their graphs in a ring of references."""
    gc.collect()
    torch.cuda.empty_cache()


def gpu_ms(call: Callable[[], None], *, repeats: int = 30) -> float:
    """Median milliseconds of one call on the device; the calls follow one another as rounds do."""
    times = []
    with torch.inference_mode():
        for _ in range(5):
            call()
        for _ in range(repeats):
            start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            start.record()
            call()
            end.record()
            end.synchronize()
            times.append(start.elapsed_time(end))
    return statistics.median(times)


def generate_s(engine: Engine, concurrency: int, new_tokens: int) -> float:
    sampling = SamplingParams(max_tokens=new_tokens, ignore_eos=True)
    rows = [Request(i, (PROMPT + i).tolist(), sampling) for i in range(concurrency)]
    torch.cuda.synchronize()
    start = time.perf_counter()
    done = list(engine.generate(rows))
    elapsed = time.perf_counter() - start
    assert all(len(c.token_ids) == new_tokens for c in done), [c.error for c in done][:1]
    return elapsed


def wall_ms_a_round(engine: Engine, concurrency: int, new_tokens: int) -> tuple[float, float, float]:
    """(a round without prefill, the whole over its tokens, prefill), milliseconds, best of three."""
    generate_s(engine, concurrency, 8)
    whole, prefill = (min(generate_s(engine, concurrency, n) for _ in range(3)) for n in (new_tokens, 1))
    generate_s(engine, concurrency, new_tokens)
    rounds = engine.stats.rounds
    return (whole - prefill) / rounds * 1e3, whole / new_tokens * 1e3, prefill * 1e3


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


def step_bytes_and_flops(config: ModelConfig, tokens: int) -> tuple[float, float]:
    """bf16 weights read by a step, and FLOPs of its matrix products."""
    width = (2 * config.num_heads + 2 * config.num_kv_heads) * config.head_dim + 3 * config.intermediate_size
    elements = config.num_layers * config.hidden_size * width + config.vocab_size * config.hidden_size
    return 2.0 * elements, 2.0 * elements * tokens


def staged(engine: Engine, requests: int, context: int, length: int = 0) -> StagedBatch:
    return StagedBatch.on(engine, np.full(requests, context), np.full(requests, length))


def floor_of(engine: Engine, tokens: int, rates: MachineRates) -> float:
    return rates.floor_s(*step_bytes_and_flops(engine.target.config, tokens)) * 1e3


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


def kernels(rates: MachineRates) -> list[Result]:
    """Where a replay's time goes, by kernel."""
    from torch.profiler import ProfilerActivity, profile

    results = []
    for requests in (1, 256):
        engine = make_engine(concurrency=requests)
        fill_caches(engine)
        batch = staged(engine, requests, 256)
        gpu_ms(batch.target)
        with torch.inference_mode(), profile(activities=[ProfilerActivity.CUDA]) as recorded:
            for _ in range(10):
                batch.target()
            torch.cuda.synchronize()
        rows = sorted(recorded.key_averages(), key=lambda row: -row.self_device_time_total)
        for row in rows[:12]:
            note = f"{row.count / 10:.0f} launches of {row.self_device_time_total / max(row.count, 1):.2f} µs"
            name = row.key if len(row.key) <= 44 else f"{row.key[:41]}..."
            results.append(Result("kernels", f"{requests}: {name}", row.self_device_time_total / 10 / 1e3, note=note))
        del engine
        release()
    return results


def peers(rates: MachineRates) -> list[Result]:
    """transformers on the same shape: compiled with a static cache at batch 1, eager at batch 64."""
    from transformers import LlamaConfig, LlamaForCausalLM, StaticCache

    config = LlamaConfig(
        vocab_size=49152, hidden_size=576, intermediate_size=1536, num_hidden_layers=30, num_attention_heads=9,
        num_key_value_heads=3, max_position_embeddings=8192, tie_word_embeddings=True,
    )  # fmt: skip
    model = LlamaForCausalLM(config).to("cuda", torch.bfloat16).eval()
    results = []
    for batch, compiled, factor in ((1, True, 3.5), (64, False, 15)):
        engine = make_engine(concurrency=batch)
        fill_caches(engine)
        inputs = staged(engine, batch, 256)
        own = gpu_ms(lambda b=inputs: (b.place(), b.target(), b.verification()))  # type: ignore[arg-type, return-value]
        del engine, inputs
        release()
        cache = StaticCache(config=config, max_cache_len=512)
        token = torch.ones(batch, 1, dtype=torch.int64, device="cuda")
        position = torch.tensor([256], device="cuda")
        forward = torch.compile(model, mode="reduce-overhead", fullgraph=True) if compiled else model

        def step(run=forward, ids=token, past=cache, at=position) -> None:  # type: ignore[no-untyped-def]
            logits = run(input_ids=ids, past_key_values=past, cache_position=at, use_cache=True).logits
            logits[:, -1].argmax(dim=-1)

        with torch.no_grad():
            prompt = torch.ones(batch, 256, dtype=torch.int64, device="cuda")
            model(input_ids=prompt, past_key_values=cache, cache_position=torch.arange(256, device="cuda"))
            theirs = gpu_ms(step)
        kind = "static cache, compiled" if compiled else "eager"
        note = f"ours {own:.3f} ms, {theirs / own:.1f} times faster; wanted {factor}"
        case = f"transformers {kind}, {batch} x 256"
        results.append(Result("peers", case, theirs, "ours", own / theirs, 1 / factor, note))
    return results


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
