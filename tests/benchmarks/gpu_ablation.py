"""What each part of a drafter is worth: one drafter a row, trained for the same number of steps on the same text.

    python tests/benchmarks/gpu_ablation.py --data text.jsonl [--steps 1000] [--only NAME …] [--json FILE]

Names are Markov head, layers, and what else differs; by default those that differ in the drafter alone are trained.
Tokens a round are those of the held-out text after the last step; the draft block is timed as decoding runs it. How
fast decoding is follows from both: (tokens a round) / (target step + draft block + verification), see `dspark profile`.
"""

from __future__ import annotations

import argparse
import gc
import json
import tempfile
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from dspark.engine import Engine, EngineConfig
from dspark.engine.jobs.manifest import manifest
from dspark.engine.profiling.job import profile_engine
from dspark.engine.profiling.settings import ProfileSettings
from dspark.engine.training.job import train_drafter
from dspark.engine.training.settings import DrafterShape, TextSettings, TrainJob, TrainSettings


class Quiet:
    """A job that nobody watches."""

    def step(self, name: str, done: int = 0, total: int = 0) -> None: ...
    def note(self, text: str) -> None: ...
    def wrote(self, progress: object) -> None: ...
    def trained(self, reading: object) -> None: ...
    def evaluated(self, acceptance: object, *, is_best: bool) -> None: ...
    def measured(self, point: object, samples_s: object) -> None: ...


# Name -> the drafter, and what differs from the settings of the command line.
ABLATIONS: dict[str, tuple[DrafterShape, dict[str, Any]]] = {
    "none-3": (DrafterShape(markov_head="none"), {}),
    "vanilla-1": (DrafterShape(layers=1), {}),
    "vanilla-2": (DrafterShape(layers=2), {}),
    "vanilla-3": (DrafterShape(), {}),
    "gated-3": (DrafterShape(markov_head="gated"), {}),
    "rnn-3": (DrafterShape(markov_head="rnn"), {}),
    "vanilla-4-rank-32": (DrafterShape(layers=4, markov_rank=32), {}),
    "vanilla-3-adamw-1.5e-3": (DrafterShape(), {"optimizer": "adamw", "learning_rate": 1.5e-3}),
    "vanilla-3-adamw-3e-3": (DrafterShape(), {"optimizer": "adamw"}),
    "vanilla-3-muon-1.5e-3": (DrafterShape(), {"learning_rate": 1.5e-3}),
    "vanilla-3-muon-6e-3": (DrafterShape(), {"learning_rate": 6e-3}),
}
SHAPES = [name for name, (_, changes) in ABLATIONS.items() if not changes]


def draft_block_ms(folder: Path, target_name: str, requests: int) -> float:
    """Median milliseconds of a draft block of so many requests, as CUDA graphs run it in decoding."""
    engine = Engine(EngineConfig(target=target_name, drafter=str(folder), device="cuda", concurrency=requests))
    settings = ProfileSettings(
        context_tokens=(256,), max_batch_tokens=None, repeats=5, seed=0, target_name=target_name, drafter_name=""
    )

    curve = profile_engine(engine, settings, Quiet()).curve
    assert curve.draft is not None
    return 1e3 * float(curve.draft.time_s[-1])


def ablation(arguments: argparse.Namespace, console: Console) -> None:
    head = ("drafter", "M parameters", "tokens a round, T = 1", "T = 0", "conditional acceptance, T = 1", "block ms")
    table = Table(*head)
    results = []
    run = manifest("cuda")
    for name in arguments.only:
        shape, changes = ABLATIONS[name]
        with tempfile.TemporaryDirectory() as folder:
            job = TrainJob(
                target=arguments.target,
                output=Path(folder),
                shape=shape,
                settings=TrainSettings(
                    steps=arguments.steps, rows=arguments.rows, anchors=arguments.anchors, save_every_s=1e9, **changes
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
        results.append({"drafter": name, "block_ms": block_ms, "training_s": result.state.elapsed_s, **best.to_dict()})
        # Row by row: a run that is cut leaves what it has.
        console.print(f"{name}: {best.sampled_length} at T = 1, {best.greedy_length} at T = 0, {block_ms:.3f} ms")
        if arguments.json:
            arguments.json.write_text(
                json.dumps({"manifest": run, "steps": arguments.steps, "rows": results}, indent=2)
            )
    console.print(table)
    console.print(", ".join(f"{name} {value}" for name, value in run.items()), soft_wrap=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="text that `dspark train` wrote")
    parser.add_argument("--target", default="smollm2-135m")
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--rows", type=int, default=32)
    parser.add_argument("--anchors", type=int, default=96)
    parser.add_argument("--only", nargs="+", choices=list(ABLATIONS), default=SHAPES)
    parser.add_argument("--requests", type=int, default=1, help="requests whose draft block is timed")
    parser.add_argument("--json", type=Path, help="write the numbers here too, row by row")
    arguments = parser.parse_args()
    ablation(arguments, Console(width=140))


if __name__ == "__main__":
    main()
