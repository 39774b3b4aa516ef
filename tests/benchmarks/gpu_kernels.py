"""Speed of the Triton kernels as multiples of what this device can do at best, each row checked before it is timed.

    python tests/benchmarks/gpu_kernels.py [--only attention] [--sweep] [--json FILE]

The floor of a row is the time to move its bytes at the copy rate, or to do its products at the matrix rate, both
measured in the same run; `peer` is the same work by cuBLAS and separate norm and SiLU kernels. A row whose results
differ from the reference's has no speed. --sweep times attention with other tile shapes instead, fastest first.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import json
import platform
import time
from dataclasses import dataclass
from pathlib import Path

import torch
import triton
from gpu_cases import DEVICE, GROUPS, QWEN, SMOL, AttentionInputs, Case
from gpu_timing import MachineRates, measure_machine, time_launches
from rich.console import Console
from rich.table import Table

from dspark.kernels.attention.split_plan import plan_splits


@dataclass(frozen=True, slots=True)
class Result:
    name: str
    detail: str
    time_s: float | None  # None: the check failed
    floor_s: float
    peer_s: float | None
    error: str | None = None


def measure(case: Case, rates: MachineRates) -> Result:
    floor_s = rates.floor_s(case.num_bytes, case.flops)
    try:
        case.check()
    except AssertionError as error:
        return Result(case.name, case.detail, None, floor_s, None, str(error).strip().partition("\n")[0])
    peer_s = None if case.peers is None else time_launches(case.peers)
    return Result(case.name, case.detail, time_launches(case.calls), floor_s, peer_s)


def sweep(rates: MachineRates) -> list[Result]:
    """Attention with every tile shape, the checked ones ordered by time within each batch."""
    batches = [(SMOL, 1, 256, 1), (SMOL, 1, 4096, 1), (SMOL, 64, 256, 1), (SMOL, 64, 4096, 8), (QWEN, 64, 4096, 8)]
    results = []
    for shape, requests, context, queries in batches:
        inputs = AttentionInputs.make(shape, context, torch.full((requests,), queries))
        chosen = plan_splits(inputs.layout, inputs.q, inputs.caches[0][0])
        timed = []
        split_counts = sorted({max(1, chosen.splits // 2), chosen.splits, min(32, 2 * chosen.splits)})
        for block_n, stages, warps, splits in itertools.product((64, 128), (3, 5), (2, 4), split_counts):
            plan = dataclasses.replace(
                chosen,
                block_n=block_n,
                num_stages=stages,
                num_warps=warps,
                splits=splits,
                partial=torch.empty(splits, *inputs.q.shape, device=DEVICE),
                log_sums=torch.empty(splits, *inputs.q.shape[:2], device=DEVICE),
                arrivals=torch.zeros(requests * chosen.tiles * shape.kv_heads, dtype=torch.int32, device=DEVICE),
            )
            inputs.layout.plan = plan
            mark = " (chosen)" if (block_n, stages, warps, splits) == (
                chosen.block_n, chosen.num_stages, chosen.num_warps, chosen.splits
            ) else ""  # fmt: skip
            detail = f"{shape.name}, {requests} x {context}, {queries}: n{block_n} s{stages} w{warps} x{splits}{mark}"
            try:
                timed.append(measure(Case("attention", detail, inputs.calls(), inputs.check, inputs.num_bytes), rates))
            except triton.runtime.errors.OutOfResources as error:
                floor_s = rates.floor_s(inputs.num_bytes)
                timed.append(Result("attention", detail, None, floor_s, None, str(error).partition("\n")[0]))
        results += sorted(timed, key=lambda result: result.time_s or float("inf"))
    return results


def show(results: list[Result], rates: MachineRates, console: Console) -> None:
    copy, matrix = rates.copy_bytes_per_s / 1e12, rates.matmul_flops_per_s / 1e12
    table = Table(
        "kernel",
        "shape",
        "µs",
        "floor µs",
        "x floor",
        "x peer",
        title=f"copy {copy:.2f} TB/s, bf16 matmul {matrix:.0f} Tflop/s",
    )
    for result in results:
        if result.time_s is None:
            table.add_row(result.name, result.detail, f"[red]wrong: {result.error}[/red]", "", "", "")
            continue
        peer = "" if result.peer_s is None else f"{result.time_s / result.peer_s:.2f}"
        times = (f"{result.time_s * 1e6:.2f}", f"{result.floor_s * 1e6:.2f}", f"{result.time_s / result.floor_s:.2f}")
        table.add_row(result.name, result.detail, *times, peer)
    console.print(table)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=GROUPS, default=list(GROUPS))
    parser.add_argument("--sweep", action="store_true", help="attention's tile shapes instead of all kernels")
    parser.add_argument("--json", type=Path, help="write the numbers here too")
    arguments = parser.parse_args()

    start = time.perf_counter()
    torch.manual_seed(0)
    rates = measure_machine()
    # One case at a time: its inputs are freed before the next one's are made.
    results = sweep(rates) if arguments.sweep else [
        measure(case, rates) for name in arguments.only for case in GROUPS[name]()
    ]  # fmt: skip
    # Wide enough for a file, where rich would wrap at 80 columns.
    show(results, rates, Console(width=130))
    manifest = {
        "device": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "triton": triton.__version__,
        "cuda": torch.version.cuda,
        "python": platform.python_version(),
        "seconds": round(time.perf_counter() - start, 1),
    }
    print(", ".join(f"{name} {value}" for name, value in manifest.items()))
    if arguments.json:
        numbers = {"rates": dataclasses.asdict(rates), "results": [dataclasses.asdict(result) for result in results]}
        arguments.json.write_text(json.dumps({"manifest": manifest, **numbers}, indent=2))


if __name__ == "__main__":
    main()
