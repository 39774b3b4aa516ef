"""The built-in pair writes the target's own greedy text; skipped where the model is neither cached nor reachable."""

from __future__ import annotations

from pathlib import Path

import pytest

from dspark.engine import Engine, Request, SamplingParams
from dspark.engine.config import EngineConfig
from dspark.engine.jobs.tokenizer import Tokenizer

MAX_TOKENS = 48
QUESTIONS = (
    "Why does the sea taste of salt?",
    "Write four lines about a lighthouse in winter.",
    "A train leaves at 9:40 and travels for 2 hours and 35 minutes. When does it arrive?",
    "List the planets of the solar system, nearest to the sun first.",
    "Write a Python function that reverses the words of a sentence.",
    "Translate to French: the library opens at ten.",
)


@pytest.fixture(scope="module")
def prompts(builtin_target: Path) -> list[tuple[int, ...]]:
    tokenizer = Tokenizer.load(builtin_target)
    assert tokenizer is not None
    return [tuple(tokenizer.encode_chat([{"role": "user", "content": question}])) for question in QUESTIONS]


@pytest.fixture(scope="module")
def reference(builtin_target: Path, prompts: list[tuple[int, ...]]) -> list[list[int]]:
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(builtin_target, dtype=torch.float32).eval()
    texts = []
    for prompt in prompts:
        ids = torch.tensor([prompt])
        out = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=MAX_TOKENS, do_sample=False)
        texts.append(out[0, len(prompt) :].tolist())
    return texts


@pytest.mark.parametrize("concurrency", [1, 16])
@pytest.mark.parametrize("policy", ["none", "fixed:1", "fixed:7", "threshold:0.5"])
def test_greedy_text_is_the_targets(
    prompts: list[tuple[int, ...]], reference: list[list[int]], policy: str, concurrency: int
) -> None:
    asked = [Request(i, prompt, SamplingParams(max_tokens=MAX_TOKENS)) for i, prompt in enumerate(prompts)]
    engine = Engine(EngineConfig(device="cpu", dtype="float32", policy=policy, concurrency=concurrency))
    done = sorted(engine.generate(asked), key=lambda completion: completion.index)
    assert [completion.token_ids for completion in done] == reference
    if policy != "none":
        assert engine.stats.spec.accepted > 0
