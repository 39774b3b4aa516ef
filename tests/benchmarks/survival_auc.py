"""Does the confidence head tell which blocks survive nearly as well as the true chance of acceptance does?

    python tests/benchmarks/survival_auc.py PROMPTS.jsonl... [--drafter DIR] [--rows 24] [--tokens 64] [--json FILE]

Sampled rounds at temperature 1, every drafted token verified, rejection exact. That at least k tokens of a block are
accepted is predicted by the product of the head's first k confidences, and by the product of the first k
1 - ½‖q - p‖₁ of the very distributions that verification compared. Even the truth does not know how the draws fall, so
its AUC is what a head is held against. Intervals are the middle 95 % of 1000 resamples of the requests.

What was accepted has no say in which rounds count. Texts are decoded past their stop tokens, so that a block with one
in it is known behind it too, and rounds that begin at or behind a text's first stop token are left out. A block that
the limit cut to fewer than k tokens is left out at k, whether it was rejected before or not.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).parents[1]))
from survival_scores import Estimate, SurvivalScore, recorded_rounds, survival_scores

from dspark.calibration import write_traces
from dspark.engine import Engine, EngineConfig, Request, SamplingParams
from dspark.engine.jobs.manifest import manifest
from dspark.engine.jobs.tokenizer import Tokenizer
from dspark.engine.models.aliases import DEFAULT_DRAFTER, DEFAULT_TARGET
from dspark.engine.models.resolve import resolve_drafter, resolve_target

POSITIONS = (1, 3, 5, 7)
ENOUGH = 0.92  # of the truth's AUC


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("prompts", nargs="+", type=Path)
    parser.add_argument("--target", default=DEFAULT_TARGET)
    parser.add_argument("--drafter", default=DEFAULT_DRAFTER)
    parser.add_argument("--rows", type=int, help="of each file; default: all")
    parser.add_argument("--tokens", type=int, default=64, help="new ones a row")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--traces", type=Path, help="write the rounds here too")
    parser.add_argument("--json", type=Path, help="write the numbers here too")
    options = parser.parse_args()
    target, drafter = resolve_target(options.target), resolve_drafter(options.drafter)
    tokenizer = Tokenizer.load(target)
    assert tokenizer is not None
    engine = Engine(
        EngineConfig(
            target=str(target), drafter=str(drafter), device=options.device, seed=options.seed, max_context=4096
        )
    )
    sampling = SamplingParams(temperature=1.0, max_tokens=options.tokens, ignore_eos=True)
    requests, datasets = [], []
    for path in options.prompts:
        for line in path.read_text(encoding="utf-8").splitlines()[: options.rows]:
            prompt = tokenizer.encode_chat([{"role": "user", "content": json.loads(line)["turns"][0]}])
            requests.append(Request(len(requests), prompt, sampling))
            datasets.append(path.stem)
    traces = recorded_rounds(engine, requests, datasets)
    if options.traces:
        write_traces(traces, options.traces)
    positions = [k for k in POSITIONS if k <= engine.gamma]
    scores = survival_scores(traces, positions, rng=np.random.default_rng(options.seed))
    title = f"{options.drafter}: {len(requests)} requests, {len(traces):,} rounds, {engine.device.type} {engine.dtype}"
    Console(width=130).print(table_of(scores, title))
    if options.json:
        paths = ("prompts", "traces", "json")
        result = {
            "settings": {name: value for name, value in vars(options).items() if name not in paths},
            "requests": {path.stem: datasets.count(path.stem) for path in options.prompts},
            "dtype": engine.dtype,
            "manifest": manifest(engine.device.type),
            "scores": [asdict(score) for score in scores],
        }
        options.json.write_text(json.dumps(result, indent=1, allow_nan=False) + "\n")


def table_of(scores: list[SurvivalScore], title: str) -> Table:
    columns = ("k", "rounds", "survive", "AUC of the head", "AUC of the truth", "ratio", f"at least {ENOUGH}")
    table = Table(*columns, title=title)
    for score in scores:
        cells = [_cell(one) for one in (score.survived, score.head, score.truth, score.ratio)]
        table.add_row(str(score.position), f"{score.rounds:,}", *cells, verdict(score.ratio))
    return table


def verdict(ratio: Estimate | None) -> str:
    """Is the head good enough, and does the interval leave a doubt?"""
    if ratio is None:
        return "one outcome only"
    doubt = ratio.low < ENOUGH <= ratio.high
    return ("yes" if ratio.value >= ENOUGH else "no") + (", within noise" if doubt else "")


def _cell(one: Estimate | None) -> str:
    return "-" if one is None else f"{one.value:.3f} ({one.low:.3f}-{one.high:.3f})"


if __name__ == "__main__":
    main()
