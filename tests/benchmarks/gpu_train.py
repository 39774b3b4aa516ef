"""Speed and memory of drafter training on a GPU, before and after.

    python tests/benchmarks/gpu_train.py speed|parts|kernel [--layers 3] [--rows 32] [--anchors 96] [--json FILE]

`speed` trains a drafter of SmolLM2-135M's shape on made-up text with random weights: once with the loss in plain
autograd over all positions' logits, once as `dspark train` does it. Block positions are those that have a label.
`parts` times each part of a step by itself, and how long the host takes to launch it; `kernel` the loss's kernel alone,
with several tiles.
"""

from __future__ import annotations

import argparse
import functools
import gc
import json
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gpu_timing import measure_machine, time_launches
from rich.console import Console
from rich.table import Table
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy

from dspark.engine.jobs.manifest import manifest
from dspark.engine.models.drafter_config import DrafterConfig
from dspark.engine.models.dummy import dummy_target
from dspark.engine.models.target import Target
from dspark.engine.training.batches import Batches, HostBatch
from dspark.engine.training.distillation import distillation_loss
from dspark.engine.training.documents import Documents
from dspark.engine.training.draft_model import TrainableDrafter
from dspark.engine.training.optimizer import DraftOptimizer
from dspark.engine.training.settings import DrafterShape, TrainSettings
from dspark.engine.training.shape import drafter_config
from dspark.engine.training.step import DistillationStep
from dspark.engine.training.text_file import Text

DEVICE = torch.device("cuda")
# Block positions a second that a plain autograd script reached on an H200, with 3 layers.
PLAIN_SCRIPT = 155_000


@dataclass(frozen=True, slots=True)
class Speed:
    way: str
    positions_per_s: float
    step_ms: float
    spread: float  # p80 - p20 of the step over its median
    peak_gb: float
    positions: int  # of a step


def made_up_texts(vocab_size: int, count: int) -> list[Text]:
    """Prompts and answers of the lengths that chats have."""
    draw = np.random.default_rng(0)
    texts = []
    for index in range(count):
        prompt, answer = draw.integers(30, 160), draw.integers(40, 350)
        tokens = draw.integers(0, vocab_size, prompt + answer).tolist()
        texts.append(Text(tokens[:prompt], tokens[prompt:], 1.0, index=index))
    return texts


def plain_autograd(step: DistillationStep, host: HostBatch) -> torch.Tensor:
    """The same loss by torch's own functions, with the logits of all positions at once."""
    settings = step.settings
    batch, taught = step.teach(host)
    drafted = step.draft(batch, taught)
    positions = batch.positions
    head = step.head.head.weight.to(drafted.hidden)
    logits = torch.nn.functional.linear(drafted.hidden, head)
    if drafted.into_w2 is not None:
        w2 = step.model.markov_head.markov_w2.weight.to(logits)
        logits = logits + torch.nn.functional.linear(drafted.into_w2, w2)
    logits = logits.float()
    target_hidden = taught.hidden.index_select(0, positions.target_positions)
    p = torch.nn.functional.linear(target_hidden, head).float().softmax(-1).index_select(0, positions.target_rows)
    distance = (logits.softmax(-1) - p).abs().sum(-1)
    terms = settings.ce_share * cross_entropy(logits, positions.labels, reduction="none") + settings.l1_share * distance
    rates = (1 - distance / 2).detach()
    terms = terms + settings.confidence_share * binary_cross_entropy_with_logits(
        drafted.confidence, rates, reduction="none"
    )
    return (positions.weights * terms).sum()


def measure(
    way: str,
    loss_of: Callable[[HostBatch], torch.Tensor],
    model: TrainableDrafter,
    settings: TrainSettings,
    batches: Batches,
) -> Speed:
    """Wall time of whole steps, one behind the other."""
    optimizer = DraftOptimizer(model, settings)
    hosts = [batches.batch(index) for index in range(8)]

    def take(index: int) -> None:
        loss_of(hosts[index % len(hosts)]).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), settings.max_gradient_norm)
        optimizer.step(1e-4)

    for index in range(8):
        take(index)
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    times = []
    for _ in range(7):
        started = time.perf_counter()
        for index in range(8):
            take(index)
        torch.cuda.synchronize()
        times.append((time.perf_counter() - started) / 8)
    step_s = statistics.median(times)
    low, high = np.quantile(times, (0.2, 0.8))
    positions = statistics.mean(len(host.slots) for host in hosts)
    peak = torch.cuda.max_memory_allocated() / 1e9
    return Speed(way, positions / step_s, 1e3 * step_s, (high - low) / step_s, peak, round(positions))


@dataclass(frozen=True, slots=True)
class Workplace:
    """A target of SmolLM2-135M's shape with random weights, and made-up texts."""

    target: Target
    documents: Documents
    settings: TrainSettings
    config: DrafterConfig

    @classmethod
    def make(cls, arguments: argparse.Namespace) -> Workplace:
        target = dummy_target("smollm2-135m", device=DEVICE, dtype="bfloat16")
        settings = TrainSettings(steps=1, rows=arguments.rows, anchors=arguments.anchors)
        config = drafter_config(DrafterShape(layers=arguments.layers), target.config, mask_token_id=3)
        texts = made_up_texts(target.config.vocab_size, 2000)
        return cls(target, Documents.from_texts(texts, most_tokens=settings.row_tokens), settings, config)

    def step(self, rows: int) -> tuple[DistillationStep, Batches]:
        settings = self.settings
        batches = Batches(
            self.documents,
            np.ones(len(self.documents), dtype=bool),
            rows=rows,
            row_tokens=settings.row_tokens,
            anchors=settings.anchors,
            block_size=self.config.block_size,
            decay=settings.position_decay,
            seed=0,
        )
        positions = settings.row_tokens + self.config.block_size
        model = TrainableDrafter(self.config, embed=self.target.embed, dtype=torch.bfloat16, num_positions=positions)
        return DistillationStep(model, self.target, settings, num_pages=batches.num_pages), batches


def speed(arguments: argparse.Namespace, console: Console) -> dict[str, object]:
    workplace = Workplace.make(arguments)

    def run(way: str, rows: int, plain: bool) -> Speed:
        step, batches = workplace.step(rows)
        loss_of = functools.partial(plain_autograd, step) if plain else lambda host: step(host).loss
        return measure(way, loss_of, step.model, workplace.settings, batches)

    table = Table("way", "positions/s", "x 155,000", "ms a step", "spread", "peak GB", "positions a step")
    results = []
    for way, rows, plain in (
        ("plain autograd", min(arguments.rows, arguments.plain_rows), True),
        ("chunked, in one kernel", min(arguments.rows, arguments.plain_rows), False),
        ("chunked, in one kernel", arguments.rows, False),
    ):
        gc.collect()
        torch.cuda.empty_cache()
        result = run(way, rows, plain)
        results.append(result)
        table.add_row(
            f"{way}, {rows} rows",
            f"{result.positions_per_s:,.0f}",
            f"{result.positions_per_s / PLAIN_SCRIPT:.2f}",
            f"{result.step_ms:.1f}",
            f"{result.spread:.1%}",
            f"{result.peak_gb:.2f}",
            f"{result.positions:,}",
        )
    console.print(table)
    return {"speed": [asdict(result) for result in results]}


def parts(arguments: argparse.Namespace, console: Console) -> dict[str, object]:
    workplace = Workplace.make(arguments)
    step, batches = workplace.step(arguments.rows)
    model, optimizer = step.model, DraftOptimizer(step.model, workplace.settings)
    times: dict[str, list[tuple[float, float]]] = {}

    def timed(name: str, call: Callable[[], Any]) -> Any:
        torch.cuda.synchronize()
        started = time.perf_counter()
        result = call()
        launched = time.perf_counter()
        torch.cuda.synchronize()
        times.setdefault(name, []).append((time.perf_counter() - started, launched - started))
        return result

    for index in range(12):
        host = timed("batch, on the host", lambda: batches.batch(index))  # noqa: B023 - called at once
        device_batch, taught = timed("target", lambda: step.teach(host))  # noqa: B023
        drafted = timed("drafter forward", lambda: step.draft(device_batch, taught))  # noqa: B023
        comparison = step.comparison(device_batch, taught)
        w2 = model.markov_head.markov_w2.weight
        loss, rows = timed(
            "loss and its gradient",
            lambda: distillation_loss(drafted.hidden, drafted.into_w2, w2, step.head, comparison),  # noqa: B023
        )
        rates = 1 - rows.distance / 2
        bce = binary_cross_entropy_with_logits(drafted.confidence, rates, reduction="none")
        loss = loss + (comparison.weights * bce).sum()
        timed("drafter backward", loss.backward)
        timed("clip", lambda: torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0))
        timed("optimizer", lambda: optimizer.step(1e-4))
    table = Table("part", "ms", "ms to launch")
    result = {}
    for name, samples in times.items():
        whole, launch = (1e3 * statistics.median(column) for column in zip(*samples[4:], strict=True))
        result[name] = {"ms": whole, "launch_ms": launch}
        table.add_row(name, f"{whole:.2f}", f"{launch:.2f}")
    console.print(table)
    return {"parts": result}


def kernel(arguments: argparse.Namespace, console: Console) -> dict[str, object]:
    """The row kernel alone. The floor reads draft and target rows and writes the gradient, each once."""
    from dspark.kernels.distillation import triton as form

    rates = measure_machine()
    rows, target_rows, vocab = 3584, 1500, 49152
    draft = torch.randn(rows, vocab, device=DEVICE) * 4
    target = torch.randn(target_rows, vocab, device=DEVICE) * 4
    gradient = torch.empty(rows, vocab, dtype=torch.bfloat16, device=DEVICE)
    facing = torch.arange(rows, device=DEVICE) * target_rows // rows
    labels, weights = torch.randint(vocab, (rows,), device=DEVICE), torch.rand(rows, device=DEVICE)
    floor_s = rates.floor_s(rows * vocab * 6 + target_rows * vocab * 4)
    table = Table("block", "warps", "ms", "x floor", title=f"{rows} rows, floor {1e3 * floor_s:.2f} ms")
    results = []
    chosen = (form._BLOCK, form._WARPS)
    for block, warps in (chosen, (2048, 8), (8192, 8), (4096, 4), (4096, 16), (8192, 16), (16384, 32)):
        form._BLOCK, form._WARPS = block, warps

        def call() -> None:
            form.distill_rows(
                draft, target, target_rows=facing, labels=labels, weights=weights, ce_share=0.1, l1_share=0.9,
                gradient=gradient,
            )  # fmt: skip

        seconds = time_launches([call], launches=4)
        table.add_row(str(block), str(warps), f"{1e3 * seconds:.2f}", f"{seconds / floor_s:.2f}")
        results.append({"block": block, "warps": warps, "ms": 1e3 * seconds, "floor_ms": 1e3 * floor_s})
    form._BLOCK, form._WARPS = chosen
    console.print(table)
    return {"kernel": results}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("speed", "parts", "kernel"))
    parser.add_argument("--layers", type=int, default=3)
    parser.add_argument("--rows", type=int, default=32)
    parser.add_argument("--plain-rows", type=int, default=8, help="rows for plain autograd, which needs the memory")
    parser.add_argument("--anchors", type=int, default=96)
    parser.add_argument("--json", type=Path, help="write the numbers here too")
    arguments = parser.parse_args()
    console = Console(width=140)
    numbers = {"speed": speed, "parts": parts, "kernel": kernel}[arguments.what](arguments, console)
    run = manifest("cuda")
    console.print(", ".join(f"{name} {value}" for name, value in run.items()), soft_wrap=True)
    if arguments.json:
        arguments.json.write_text(json.dumps({"manifest": run, **numbers}, indent=2))


if __name__ == "__main__":
    main()
