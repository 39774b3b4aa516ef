"""How the GPU benchmarks time: launches inside CUDA graphs, against what this device copies and multiplies."""

from __future__ import annotations

import functools
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

# Inputs are cycled through until together they are several times the size of the second-level cache.
CYCLED_BYTES = 200 << 20
MOST_COPIES = 24


@dataclass(frozen=True, slots=True)
class MachineRates:
    """What this device does at best, measured in this run."""

    copy_bytes_per_s: float  # read + write
    matmul_flops_per_s: float  # bf16, fp32 accumulation

    def floor_s(self, num_bytes: float, flops: float = 0.0) -> float:
        """The time below which neither the bytes nor the products can be done."""
        return max(num_bytes / self.copy_bytes_per_s, flops / self.matmul_flops_per_s)


def copies_for(num_bytes: float) -> int:
    """How many sets of inputs of this size defeat the cache."""
    return int(max(1, min(MOST_COPIES, -(-CYCLED_BYTES // max(1, int(num_bytes))))))


def time_launches(calls: Sequence[Callable[[], object]], *, launches: int = 24, repeats: int = 7) -> float:
    """Seconds of one call, the median of replays of a graph that cycles through `calls`."""
    graph = capture(calls, launches)
    return statistics.median(_replay_s(graph) / launches for _ in range(repeats))


def capture(calls: Sequence[Callable[[], object]], launches: int) -> torch.cuda.CUDAGraph:
    # Compiles, and allocates what outlives the graph, before the capture.
    for call in calls:
        call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for index in range(launches):
            calls[index % len(calls)]()
    graph.replay()
    torch.cuda.synchronize()
    return graph


def _replay_s(graph: torch.cuda.CUDAGraph) -> float:
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    graph.replay()
    end.record()
    end.synchronize()
    return start.elapsed_time(end) * 1e-3


def _settled_s(graph: torch.cuda.CUDAGraph, *, limit_s: float = 2.0) -> float:
    """Seconds of a replay once the clocks have ramped up: the last ten agree within 1 %, or time is over."""
    recent: list[float] = []
    deadline = time.perf_counter() + limit_s
    while time.perf_counter() < deadline:
        recent = [*recent[-9:], _replay_s(graph)]
        if len(recent) == 10 and max(recent) <= 1.01 * min(recent):
            break
    return statistics.median(recent)


def measure_machine() -> MachineRates:
    """The matmul runs first and warms the device up for the copies."""
    n = 8192
    factor = torch.randn(n, n, device="cuda", dtype=torch.bfloat16)
    matmul_s = _settled_s(capture([lambda: factor @ factor], 8)) / 8
    rates = []
    for size in (1 << 28, 1 << 30, 1 << 31):
        source = torch.zeros(size, dtype=torch.uint8, device="cuda")
        target = torch.empty_like(source)
        launches = (1 << 33) // size
        graph = capture([functools.partial(target.copy_, source)], launches)
        rates.append(2 * size * launches / _settled_s(graph))
        del graph, source, target
    return MachineRates(copy_bytes_per_s=max(rates), matmul_flops_per_s=2 * n**3 / matmul_s)
