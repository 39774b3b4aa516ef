"""What a self-test asks: prompts that come with the package, or made-up tokens where there is no tokenizer."""

from __future__ import annotations

import importlib.resources
from typing import TYPE_CHECKING

import numpy as np

from dspark.engine.jobs import strict_json
from dspark.engine.selftest.settings import PROMPT_TOKENS

if TYPE_CHECKING:
    from dspark.engine.jobs.dialogue import TextCodec


def selftest_prompts(tokenizer: TextCodec | None, *, vocab_size: int, count: int, seed: int) -> list[list[int]]:
    """`count` prompts of up to `PROMPT_TOKENS` tokens; they repeat where the package has fewer."""
    rng = np.random.default_rng(seed)
    if tokenizer is None:
        lengths = rng.integers(2, PROMPT_TOKENS + 1, count)
        return [rng.integers(0, vocab_size, length).tolist() for length in lengths]
    lines = importlib.resources.files("dspark.calibration").joinpath("prompts.jsonl").read_text(encoding="utf-8")
    questions = [strict_json.loads(line)["turns"][0] for line in lines.splitlines()]
    chosen = rng.permutation(len(questions))
    encoded = [tokenizer.encode(questions[chosen[i % len(questions)]]) for i in range(count)]
    return [tokens[:PROMPT_TOKENS] for tokens in encoded]
