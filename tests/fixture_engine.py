"""The engine over a fixture's pair, and what transformers writes for the same prompts."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dspark.engine import Completion, Engine, Request, SamplingParams
from dspark.engine.config import EngineConfig
from dspark.engine.models.target import Target
from dspark.engine.scheduler.policies import ScheduleView

FIXTURES = Path(__file__).parents[0] / "fixtures"
VOCAB = 256
MAX_TOKENS = 40
PROMPT_LENGTHS = (1, 2, 3, 5, 8, 13, 21, 34, 55, 17, 4, 16, 15, 1, 40, 7)


class Detokenizer:
    """Spells token 7 as `<7>`."""

    eos_token_id: int | None

    def __init__(self, eos_token_id: int | None = None) -> None:
        self.eos_token_id = eos_token_id

    def decode(self, token_ids: Sequence[int]) -> str:
        return "".join(f"<{token}>" for token in token_ids)


class SometimesNothing:
    """Lengths that change from round to round and from request to request."""

    def __repr__(self) -> str:
        # Part of test names, which have to be the same in every process.
        return "sometimes-nothing"

    drafts = True
    reads_confidence = True

    def steps(self, gamma: int) -> int:
        return gamma

    def lengths(self, view: ScheduleView) -> np.ndarray:
        wanted = np.floor(np.abs(view.confidence_logits[:, 0]) * 97) % 9
        return np.minimum(wanted.astype(np.int64), view.caps)


def make_engine(
    name: str = "dspark_rnn", *, detokenizer: Any = None, policy: Any = "fixed:7", planner: Any = None, **config: Any
) -> Engine:
    folder = FIXTURES / name
    settings = {"target": str(folder / "target"), "drafter": str(folder / "draft"), "concurrency": 16, "page_size": 4}
    spelled = policy if isinstance(policy, str) else None
    return Engine(
        EngineConfig(device="cpu", dtype="float32", policy=spelled, **(settings | config)),
        policy=None if isinstance(policy, str) else policy,
        planner=planner,
        detokenizer=detokenizer,
    )


def prompts() -> list[list[int]]:
    rng = np.random.default_rng(5)
    return [rng.integers(3, VOCAB - 1, length).tolist() for length in PROMPT_LENGTHS]


def requests(**sampling: Any) -> list[Request]:
    params = SamplingParams(**({"max_tokens": MAX_TOKENS} | sampling))
    return [Request(index, prompt, params) for index, prompt in enumerate(prompts())]


def texts(completions: Iterator[Completion]) -> list[list[int]]:
    """Token ids in the order of the requests."""
    done = sorted(completions, key=lambda completion: completion.index)
    assert not [c.error for c in done if c.error]
    return [completion.token_ids for completion in done]


def generate(model: Any, prompt: list[int], max_tokens: int, **options: Any) -> list[int]:
    """What transformers answers."""
    ids = torch.tensor([prompt])
    mask = torch.ones_like(ids)
    out = model.generate(ids, attention_mask=mask, max_new_tokens=max_tokens, do_sample=False, **options)
    return out[0, len(prompt) :].tolist()


@cache
def reference(name: str) -> list[list[int]]:
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(FIXTURES / name / "target", dtype=torch.float32).eval()
    return [generate(model, prompt, MAX_TOKENS, pad_token_id=0) for prompt in prompts()]


def say(target: Target, token_behind: Callable[[Tensor], Tensor]) -> None:
    """Make `target` say a token that is a function of the text position before it."""
    forward = target.forward

    def said(batch: Any, *args: Any, **kwargs: Any) -> Any:
        output = forward(batch, *args, **kwargs)
        rows = kwargs.get("logit_rows")
        positions = batch.positions if rows is None else batch.positions[rows]
        output.logits.zero_().scatter_(1, token_behind(positions)[:, None], 10.0)
        return output

    target.forward = said  # type: ignore[method-assign]
