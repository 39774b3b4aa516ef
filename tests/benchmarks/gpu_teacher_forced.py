"""Where a GPU's greedy choice differs from the CPU's fp32 one, on the CPU's own text.

    python tests/benchmarks/gpu_teacher_forced.py PROMPTS.jsonl... [--rows 8] [--tokens 96]

The CPU decodes greedily in fp32. Its text is then run through the target on the CPU and on the GPU, and at every
generated position the logits are compared: a choice may differ only where the CPU's two best logits are closer than
twice the error of the GPU's logits at that position.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

from dspark.engine import Engine, EngineConfig, Request, SamplingParams
from dspark.engine.batch import PackedBatch
from dspark.engine.jobs.tokenizer import Tokenizer
from dspark.engine.models.aliases import DEFAULT_TARGET
from dspark.engine.models.resolve import resolve_target
from dspark.engine.models.target import Target
from dspark.kernels import AttentionLayout

PAGE = 16


def all_logits(target: Target, tokens: list[int]) -> torch.Tensor:
    """Logits [T, V] behind every token of one text, on the CPU."""
    device, count = target.device, len(tokens)
    pages = -(-count // PAGE)
    position = torch.arange(count, device=device)
    layout = AttentionLayout(
        block_tables=torch.arange(1, pages + 1, dtype=torch.int32, device=device)[None],
        query_starts=torch.tensor([0, count], dtype=torch.int32, device=device),
        kv_lens=torch.tensor([count], dtype=torch.int32, device=device),
        page_size=PAGE,
        max_query_len=count,
        max_kv_len=count,
    )
    batch = PackedBatch(torch.tensor(tokens, device=device), position, PAGE + position, layout)
    return target.forward(batch, target.new_cache(1 + pages, PAGE)).logits.float().cpu()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("prompts", nargs="+", type=Path)
    parser.add_argument("--rows", type=int, default=8, help="of each file")
    parser.add_argument("--tokens", type=int, default=96, help="new ones a row")
    options = parser.parse_args()
    folder = resolve_target(DEFAULT_TARGET)
    tokenizer = Tokenizer.load(folder)
    assert tokenizer is not None
    prompts = []
    for path in options.prompts:
        for line in path.read_text(encoding="utf-8").splitlines()[: options.rows]:
            prompts.append(tokenizer.encode_chat([{"role": "user", "content": json.loads(line)["turns"][0]}]))
    cpu = Engine(EngineConfig(target=str(folder), drafter="none", policy="none", device="cpu", dtype="float32"))
    sampling = SamplingParams(max_tokens=options.tokens)
    requests = [Request(i, prompt, sampling) for i, prompt in enumerate(prompts)]
    texts = {c.index: c.token_ids for c in cpu.generate(requests)}
    table = Table(title=f"{len(prompts)} texts, {sum(map(len, texts.values()))} positions")
    for name in ("GPU dtype", "choices that differ", "largest logit error", "median gap / (2 error) there", "largest"):
        table.add_column(name)
    with torch.inference_mode():
        references = [all_logits(cpu.target, prompts[i] + texts[i][:-1])[len(prompts[i]) - 1 :] for i in sorted(texts)]
        for dtype in ("float32", "bfloat16"):
            gpu = Engine(
                EngineConfig(
                    target=str(folder), drafter="none", policy="none", device="cuda", dtype=dtype, graphs=False,
                    kv_cache_tokens=16384,
                )
            )  # fmt: skip
            shares, errors = [], []
            for i, reference in zip(sorted(texts), references, strict=True):
                logits = all_logits(gpu.target, prompts[i] + texts[i][:-1])[len(prompts[i]) - 1 :]
                error = (logits - reference).abs().amax(dim=1)
                errors.append(float(error.max()))
                best = reference.topk(2).values
                other = logits.argmax(dim=1) != reference.argmax(dim=1)
                shares += ((best[:, 0] - best[:, 1]) / (2 * error))[other].tolist()
            largest = max(shares, default=0.0)
            assert largest < 1, "a choice differs beyond the error of the logits"
            median = f"{np.median(shares):.2f}" if shares else "-"
            table.add_row(dtype, str(len(shares)), f"{max(errors):.2g}", median, f"{largest:.2f}")
            del gpu
            torch.cuda.empty_cache()
    Console(width=120).print(table)


if __name__ == "__main__":
    main()
