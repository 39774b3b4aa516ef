"""Speed and memory of drafter training on a GPU, before and after, and what each part of a drafter is worth.

    python tests/benchmarks/gpu_train.py speed [--layers 3] [--rows 32] [--anchors 96] [--json FILE]
    python tests/benchmarks/gpu_train.py ablation --data text.jsonl [--steps 1500] [--json FILE]

`speed` trains a drafter of SmolLM2-135M's shape on made-up text with random weights: once with the loss in plain
autograd over all positions' logits, once as `dspark train` does it. Block positions are those that have a label.
`ablation` trains one drafter a row for the same number of steps on one file of text, and times the draft block of each.
"""

from __future__ import annotations

import argparse
import functools
import gc
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy

sys.path.insert(0, str(Path(__file__).parents[1]))

from dspark.engine.jobs.manifest import manifest
from dspark.engine.models.dummy import dummy_target
from dspark.engine.training.batches import Batches, HostBatch
from dspark.engine.training.documents import Documents
from dspark.engine.training.draft_model import DraftModel
from dspark.engine.training.job import train_drafter
from dspark.engine.training.settings import DrafterShape, TextSettings, TrainJob, TrainSettings
from dspark.engine.training.shape import drafter_config
from dspark.engine.training.step import DistillationStep
from dspark.engine.training.text_file import Text
from dspark.engine.training.trainer import make_optimizer

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
    head = step.head.head.weight
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
    way: str, loss_of: Callable[[HostBatch], torch.Tensor], model: DraftModel, settings: TrainSettings, batches: Batches
) -> Speed:
    """Wall time of whole steps, one behind the other."""
    optimizer = make_optimizer(model, settings)
    hosts = [batches.batch(index) for index in range(8)]

    def take(index: int) -> None:
        loss_of(hosts[index % len(hosts)]).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), settings.max_gradient_norm)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

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


def speed(arguments: argparse.Namespace, console: Console) -> dict[str, object]:
    target = dummy_target("smollm2-135m", device=DEVICE, dtype="bfloat16")
    settings = TrainSettings(steps=1, rows=arguments.rows, anchors=arguments.anchors)
    config = drafter_config(DrafterShape(layers=arguments.layers), target.config, mask_token_id=3)
    documents = Documents.from_texts(made_up_texts(target.config.vocab_size, 2000), most_tokens=settings.row_tokens)

    def run(way: str, rows: int, plain: bool) -> Speed:
        batches = Batches(
            documents,
            np.ones(len(documents), dtype=bool),
            rows=rows,
            row_tokens=settings.row_tokens,
            anchors=settings.anchors,
            block_size=config.block_size,
            decay=settings.position_decay,
            seed=0,
        )
        model = DraftModel(config, embed=target.embed, dtype=torch.bfloat16, num_positions=settings.row_tokens + 8)
        step = DistillationStep(model, target, settings, num_pages=batches.num_pages)
        loss_of = functools.partial(plain_autograd, step) if plain else lambda host: step(host).loss
        result = measure(way, loss_of, model, settings, batches)
        gc.collect()
        torch.cuda.empty_cache()
        return result

    table = Table("way", "positions/s", "x 155,000", "ms a step", "spread", "peak GB", "positions a step")
    results = []
    for way, rows, plain in (
        ("plain autograd", min(arguments.rows, arguments.plain_rows), True),
        ("chunked, in one kernel", min(arguments.rows, arguments.plain_rows), False),
        ("chunked, in one kernel", arguments.rows, False),
    ):
        result = run(way, rows, plain)
        # What the run before held is free now.
        torch.cuda.empty_cache()
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


class Quiet:
    """Training that nobody watches."""

    def step(self, name: str, done: int = 0, total: int = 0) -> None: ...
    def note(self, text: str) -> None: ...
    def wrote(self, progress: object) -> None: ...
    def trained(self, reading: object) -> None: ...
    def evaluated(self, acceptance: object, *, is_best: bool) -> None: ...


ABLATIONS = {
    "no Markov head, 3 layers": DrafterShape(markov_head="none"),
    "vanilla, 1 layer": DrafterShape(layers=1),
    "vanilla, 2 layers": DrafterShape(layers=2),
    "vanilla, 3 layers": DrafterShape(),
    "gated, 3 layers": DrafterShape(markov_head="gated"),
    "rnn, 3 layers": DrafterShape(markov_head="rnn"),
}


def draft_block_ms(folder: Path, target_name: str, requests: int) -> float:
    """Median milliseconds of a draft block of so many requests, as CUDA graphs run it in decoding."""
    from dspark.engine import Engine, EngineConfig
    from dspark.engine.profiling.job import profile_engine
    from dspark.engine.profiling.settings import ProfileSettings

    engine = Engine(EngineConfig(target=target_name, drafter=str(folder), device="cuda", concurrency=requests))
    settings = ProfileSettings(
        context_tokens=(256,), max_batch_tokens=None, repeats=5, seed=0, target_name=target_name, drafter_name=""
    )

    class Reporter(Quiet):
        def measured(self, point: object, samples_s: object) -> None: ...

    curve = profile_engine(engine, settings, Reporter()).curve
    assert curve.draft is not None
    return 1e3 * float(curve.draft.time_s[-1])


def ablation(arguments: argparse.Namespace, console: Console) -> dict[str, object]:
    head = ("drafter", "M parameters", "tokens a round, T = 1", "T = 0", "conditional acceptance, T = 1", "block ms")
    table = Table(*head)
    results = []
    for name, shape in ABLATIONS.items():
        with tempfile.TemporaryDirectory() as folder:
            job = TrainJob(
                target=arguments.target,
                output=Path(folder),
                shape=shape,
                settings=replace(
                    TrainSettings(steps=arguments.steps), rows=arguments.rows, anchors=arguments.anchors, save_every=1e9
                ),
                text=TextSettings(data=arguments.data),
            )
            result = train_drafter(job, Quiet())
            best = result.state.history[-1]
            gc.collect()
            torch.cuda.empty_cache()
            block_ms = draft_block_ms(Path(folder), arguments.target, arguments.requests)
            gc.collect()
            torch.cuda.empty_cache()
        table.add_row(
            name,
            f"{result.parameters / 1e6:.1f}",
            f"{best.sampled_length or 0:.3f}",
            f"{best.greedy_length or 0:.3f}",
            " ".join(f"{rate:.2f}" for rate in best.sampled_conditional),
            f"{block_ms:.3f}",
        )
        # Row by row: a run that is cut leaves what it has.
        console.print(f"{name}: {json.dumps(best.to_dict())}, block {block_ms:.3f} ms", soft_wrap=True)
        results.append({"drafter": name, "block_ms": block_ms, "training_s": result.state.elapsed_s, **best.to_dict()})
    console.print(table)
    return {"ablation": results}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("speed", "ablation"))
    parser.add_argument("--layers", type=int, default=3)
    parser.add_argument("--rows", type=int, default=32)
    parser.add_argument("--plain-rows", type=int, default=8, help="rows for plain autograd, which needs the memory")
    parser.add_argument("--anchors", type=int, default=96)
    parser.add_argument("--data", type=Path, help="text of `dspark train`, for the ablation")
    parser.add_argument("--target", default="smollm2-135m")
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--requests", type=int, default=1, help="requests whose draft block is timed")
    parser.add_argument("--json", type=Path, help="write the numbers here too")
    arguments = parser.parse_args()
    if arguments.what == "ablation" and arguments.data is None:
        parser.error("the ablation needs --data")
    console = Console(width=140)
    numbers = (speed if arguments.what == "speed" else ablation)(arguments, console)
    run = manifest("cuda")
    console.print(", ".join(f"{name} {value}" for name, value in run.items()), soft_wrap=True)
    if arguments.json:
        arguments.json.write_text(json.dumps({"manifest": run, **numbers}, indent=2))


if __name__ == "__main__":
    main()
