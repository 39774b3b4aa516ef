"""Tokens a second of every policy over concurrency and temperature, in steady state.

    python tests/benchmarks/gpu_policies.py PROMPTS.jsonl... --profile profile.json [--calibration calibration.json]
        [--concurrency 1,16,64,256] [--temperatures 0,1] [--repeats 2] [--answers 24] [--json FILE]
    python tests/benchmarks/gpu_policies.py --target qwen3-4b --impose traces.parquet --profile profile.json …

Requests never run out: prompts in shuffled order, 256 tokens each, end tokens ignored; the first ones are cut at other
lengths each, so that requests come and go evenly from the start. What counts begins when as many requests as run at
once have ended and lasts for `--answers` more, twice the concurrency if that is more: the same requests for every
policy, or what a policy reaches would hang on which prompts fell into its window. Policies of one concurrency take
turns, so that a drift of the machine falls on all of them, one temperature after the other: what a planner learnt at
one is forgotten at the next, as in a run of its own. Every repeat has other prompts and seeds. A cell is the mean of
its repeats, with half the distance between the lowest and the highest. The rounds of what counts are summed up in
`--json`.

`--impose` gives the target and a drafter random weights, prompts of random tokens, and the acceptance of recorded
rounds (see `imposed_acceptance`).
"""

from __future__ import annotations

import argparse
import gc
import itertools
import json
import random
import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).parents[1]))
from imposed_acceptance import RecordedRounds, imposed

from dspark.engine import Engine, EngineConfig, Request, SamplingParams
from dspark.engine.artefacts import make_planner
from dspark.engine.jobs.tokenizer import Tokenizer
from dspark.engine.models.aliases import DEFAULT_DRAFTER, DEFAULT_TARGET
from dspark.engine.models.dummy import dummy_drafter, dummy_target
from dspark.engine.models.resolve import resolve_drafter, resolve_target
from dspark.engine.round_meter import RoundMetrics
from dspark.engine.scheduler.policies import Planned

POLICIES = ("none", "fixed:1", "fixed:3", "fixed:7", "threshold:0.5", "causal", "async")
NEW_TOKENS, LONGEST = 256, 1024
Cell = tuple[int, float, str]  # concurrency, temperature, policy


@dataclass(frozen=True, slots=True)
class Load:
    """What every policy gets to do."""

    prompts: list[list[int]]
    temperature: float
    answers: int  # that count
    repeat: int  # what counts has other prompts and seeds in each; -1: to warm up, where nothing counts

    def rows(self, concurrency: int) -> Iterator[Request]:
        """Requests without end; the first ones spread their ends over a request's life."""
        for index in itertools.count():
            length = min(1 + NEW_TOKENS * (1 + index) // concurrency, NEW_TOKENS)
            place = self.repeat * self.answers + index
            sampling = SamplingParams(temperature=self.temperature, max_tokens=length, ignore_eos=True, seed=place)
            yield Request(index, self.prompts[place % len(self.prompts)], sampling)


def tokens_per_s(engine: Engine, load: Load, rounds: list[RoundMetrics]) -> float:
    """Of the answers that count, whose rounds `rounds` receives: an empty list."""
    engine.round_listener = rounds.append
    running = engine.generate(load.rows(engine.concurrency))
    for completion in itertools.islice(running, engine.concurrency):
        assert completion.error is None, completion.error
    first_round, first, began = len(rounds), engine.stats.emitted, time.perf_counter()
    for completion in itertools.islice(running, load.answers):
        assert completion.error is None, completion.error
    last, ended = engine.stats.emitted, time.perf_counter()
    running.close()
    del rounds[:first_round]
    return (last - first) / (ended - began)


def summed_up(rounds: list[RoundMetrics]) -> list[dict[str, float]]:
    """Means over the rounds of one bucket and block length, and over those of them that were measured."""
    found: dict[tuple[int, int], list[RoundMetrics]] = defaultdict(list)
    for metrics in rounds:
        found[metrics.bucket, metrics.drafted_tokens // max(metrics.requests, 1)].append(metrics)
    rows = []
    for (bucket, drafted), alike in sorted(found.items()):
        row: dict[str, float] = {"bucket": bucket, "drafted_each": drafted, "rounds": len(alike)}
        row |= {
            name: statistics.mean(getattr(m, name) for m in alike) for name in ("requests", "batch_tokens", "emitted")
        }
        for name in ("expected_tokens", "predicted_s", "predicted_step_s", "measured_s", "measured_step_s"):
            values = [value for m in alike if (value := getattr(m, name)) is not None]
            row |= {name: statistics.mean(values), f"{name}_rounds": len(values)} if values else {}
        rows.append(row)
    return rows


def built_in(options: argparse.Namespace) -> tuple[dict[str, Any], list[list[int]]]:
    """How an engine of the built-in target is configured, and prompts for it."""
    target = resolve_target(DEFAULT_TARGET)
    tokenizer = Tokenizer.load(target)
    assert tokenizer is not None
    prompts = [
        tokenizer.encode_chat([{"role": "user", "content": json.loads(line)["turns"][0]}])
        for path in options.prompts
        for line in path.read_text(encoding="utf-8").splitlines()
    ]
    prompts = [prompt for prompt in prompts if len(prompt) + NEW_TOKENS < LONGEST]
    # Or a small concurrency would see a single set.
    random.Random(0).shuffle(prompts)
    return {"target": str(target), "drafter": str(resolve_drafter(options.drafter))}, prompts


def made_up(options: argparse.Namespace) -> tuple[dict[str, Any], list[list[int]], dict[str, Any]]:
    """The same of random weights, and the models, which all engines share: several of the large ones do not fit."""
    draw = np.random.default_rng(0)
    prompts = [draw.integers(3, 40_000, draw.integers(30, 200)).tolist() for _ in range(320)]
    where: dict[str, Any] = {"device": torch.device("cuda"), "dtype": "bfloat16"}
    target = dummy_target(options.target, **where)
    models = {"target": target, "drafter": dummy_drafter(None, target=target, **where)}
    return {"target": options.target, "load_format": "dummy"}, prompts, models


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("prompts", nargs="*", type=Path)
    parser.add_argument("--profile", required=True)
    parser.add_argument("--calibration")
    parser.add_argument("--drafter", default=DEFAULT_DRAFTER)
    parser.add_argument("--target", default="qwen3-4b", help="shape of --impose")
    parser.add_argument("--impose", type=Path, metavar="TRACES", help="traces.parquet whose acceptance is imposed")
    parser.add_argument("--concurrency", default="1,16,64,256")
    parser.add_argument("--temperatures", default="0,1")
    parser.add_argument("--policies", default=",".join(POLICIES))
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--answers", type=int, default=24, help="that count in a window, if not twice the concurrency")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    if options.impose is None:
        measure(options, *built_in(options))
    else:
        with imposed(RecordedRounds.read(options.impose, torch.device("cuda"))):
            measure(options, *made_up(options))


def measure(
    options: argparse.Namespace, config: dict[str, Any], prompts: list[list[int]], models: dict[str, Any] | None = None
) -> None:
    """All cells, printed size by size."""
    policies = options.policies.split(",")
    sizes = [int(size) for size in options.concurrency.split(",")]
    temperatures = [float(temperature) for temperature in options.temperatures.split(",")]
    cells: dict[Cell, list[float]] = defaultdict(list)
    recorded: dict[Cell, list[RoundMetrics]] = defaultdict(list)
    for size in sizes:
        engines = {}
        for policy in policies:
            settings: dict[str, Any] = {"profile": options.profile, "calibration": options.calibration}
            engines[policy] = Engine(
                EngineConfig(
                    policy=policy,
                    concurrency=size,
                    max_context=LONGEST,
                    kv_cache_tokens=size * (LONGEST + 32),
                    **config,
                    **(settings if policy in ("causal", "async") else {}),
                ),
                **(models or {}),
            )
        for temperature in temperatures:
            for engine in engines.values():
                if isinstance(engine.policy, Planned):
                    engine.planner = make_planner(engine, engine.policy)
                tokens_per_s(engine, Load(prompts, temperature, answers=size, repeat=-1), rounds=[])
            for repeat, (policy, engine) in itertools.product(range(options.repeats), engines.items()):
                window: list[RoundMetrics] = []
                load = Load(prompts, temperature, max(options.answers, 2 * size), repeat)
                speed = tokens_per_s(engine, load, window)
                cells[size, temperature, policy].append(speed)
                recorded[size, temperature, policy] += window
        engines.clear()
        gc.collect()
        torch.cuda.empty_cache()
        Console(width=140).print(table_of(cells, policies, temperatures))
        if options.json:
            # Size by size: a run that is cut leaves what it has.
            rows = [
                {
                    "concurrency": c,
                    "temperature": t,
                    "policy": p,
                    "tokens_per_s": speeds,
                    "rounds": summed_up(recorded[c, t, p]),
                }
                for (c, t, p), speeds in cells.items()
            ]
            options.json.write_text(json.dumps(rows) + "\n")


def table_of(cells: dict[Cell, list[float]], policies: list[str], temperatures: list[float]) -> Table:
    table = Table(title=f"{torch.cuda.get_device_name()}: tokens a second, and for each request")
    sizes = sorted({size for size, _, _ in cells})
    for name in ("T", "policy", *(f"{size} at once" for size in sizes)):
        table.add_column(name)
    for temperature in temperatures:
        means = {key: statistics.mean(speeds) for key, speeds in cells.items() if key[1] == temperature}
        for policy in policies:
            row = []
            for size in sizes:
                speeds = cells[size, temperature, policy]
                mean = means[size, temperature, policy]
                row.append(f"{mean:,.0f} ± {(max(speeds) - min(speeds)) / 2:,.0f} ({mean / size:,.0f})")
            table.add_row(f"{temperature:g}", policy, *row)
        ratios = []
        for size in sizes:
            nothing = float("nan")
            speeds_of_others = [means[size, temperature, policy] for policy in policies if policy != "async"]
            others = max(speeds_of_others, default=nothing)
            own, plain = (means.get((size, temperature, policy), nothing) for policy in ("async", "none"))
            ratios.append(f"{own / others:.3f} of the best, {own / plain:.2f} x none")
        table.add_row("", "async", *ratios, end_section=True)
    return table


if __name__ == "__main__":
    main()
