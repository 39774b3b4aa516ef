"""Engines of random weights on a GPU, and how long their rounds and the replays of their graphs take.

Speed does not depend on weights; acceptance does, so rounds of drafting policies are timed as rounds, not as tokens.
"""

from __future__ import annotations

import gc
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from gpu_timing import MachineRates

sys.path.insert(0, str(Path(__file__).parents[1]))
from staged_batch import StagedBatch

from dspark.engine import Engine, EngineConfig, Request, SamplingParams
from dspark.engine.models.model_config import ModelConfig

_PROMPT = 3 + np.arange(64) * 7


@dataclass(frozen=True, slots=True)
class Result:
    """One row of the table that a benchmark prints."""

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
    rows = [Request(i, (_PROMPT + i).tolist(), sampling) for i in range(concurrency)]
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


def step_bytes_and_flops(config: ModelConfig, tokens: int) -> tuple[float, float]:
    """bf16 weights read by a step, and FLOPs of its matrix products."""
    width = (2 * config.num_heads + 2 * config.num_kv_heads) * config.head_dim + 3 * config.intermediate_size
    elements = config.num_layers * config.hidden_size * width + config.vocab_size * config.hidden_size
    return 2.0 * elements, 2.0 * elements * tokens


def staged(engine: Engine, requests: int, context: int, length: int = 0) -> StagedBatch:
    return StagedBatch.on(engine, np.full(requests, context), np.full(requests, length))


def floor_of(engine: Engine, tokens: int, rates: MachineRates) -> float:
    return rates.floor_s(*step_bytes_and_flops(engine.target.config, tokens)) * 1e3
