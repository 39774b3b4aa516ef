"""Where texts end, and what is in the caches then: stop tokens, length limits and rollbacks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from dspark.engine.counts import RunStats
from dspark.engine.loop import DecodeLoop
from dspark.engine.requests import Completion, Request, SamplingParams
from dspark.engine.selftest.cache_watch import TOLERANCES, CacheWatch
from dspark.engine.selftest.greedy import deficits
from dspark.engine.selftest.noise import near_tie_gap
from dspark.engine.selftest.phases import Counted, uncounted
from dspark.engine.selftest.report import Check

if TYPE_CHECKING:
    from dspark.engine.engine import Engine
    from dspark.engine.selftest.plain import PlainForward

ENDS, CACHES = "ends of texts", "caches"


class EndToken:
    """Stands in for a tokenizer whose end token occurs in the pair's own texts."""

    def __init__(self, eos_token_id: int) -> None:
        self.eos_token_id = eos_token_id

    def decode(self, token_ids: Sequence[int]) -> str:
        """Nothing: no text is looked at."""
        return ""


def end_token(texts: Sequence[Sequence[int]]) -> int:
    """A token that ends as many of `texts` as can be, none of them at once."""
    seen = Counter(token for text in texts for token in set(text[2:]) - set(text[:2]))
    return min(seen, key=lambda token: (-seen[token], token)) if seen else texts[0][-1]


def check_ends(
    engine: Engine,
    plain: PlainForward,
    prompts: Sequence[list[int]],
    *,
    policy: str,
    most: int,
    noise: float,
    counted: Counted = uncounted,
) -> list[Check]:
    """Decode more requests than there are slots, of many lengths, and look at their ends and into their caches.

    Every second one ends at end tokens too. The engine runs one round at a time here, watched from outside.
    """
    requests = _requests(prompts, count=engine.concurrency + engine.concurrency // 2, gamma=engine.gamma, most=most)
    completions, watch = _decode(engine, plain, requests, counted)
    return [
        _judge_ends(engine, plain, requests, completions, policy=policy, noise=noise),
        _judge_caches(watch, policy=policy, dtype=engine.dtype),
    ]


def _requests(prompts: Sequence[list[int]], *, count: int, gamma: int, most: int) -> list[Request]:
    """Limits around the length of a round and of two, and long ones."""
    limits = [limit for limit in (most, 1, gamma + 1, most, 2, gamma + 2, most, 2 * gamma + 1) if limit <= most]
    return [
        Request(
            index,
            prompts[index % len(prompts)],
            SamplingParams(max_tokens=limits[index % len(limits)], ignore_eos=index % 2 == 1),
        )
        for index in range(count)
    ]


@torch.inference_mode()
def _decode(
    engine: Engine, plain: PlainForward, requests: Sequence[Request], counted: Counted
) -> tuple[list[Completion], CacheWatch]:
    engine.stats = RunStats()
    loop = DecodeLoop(engine, requests, depth=0)
    watch = CacheWatch(engine, loop, plain)
    engine.observer = watch
    try:
        done = sorted(counted(loop.run(), len(requests)), key=lambda completion: completion.index)
    finally:
        engine.observer = None
    return done, watch


def _judge_ends(
    engine: Engine,
    plain: PlainForward,
    requests: Sequence[Request],
    completions: Sequence[Completion],
    *,
    policy: str,
    noise: float,
) -> Check:
    wrong = []
    for request, completion in zip(requests, completions, strict=True):
        fault = _fault(request, completion, engine.stop_ids)
        below = deficits(plain, request.prompt_token_ids, completion.token_ids).max() if completion.token_ids else 0.0
        if fault is None and below > near_tie_gap(noise):
            fault = f"holds a token that is {below:.2g} below the best logit"
        if fault is not None:
            wrong.append(f"request {request.index} {fault}")
    reasons = Counter(completion.finish_reason for completion in completions)
    numbers = {"requests": len(requests), "stop": reasons["stop"], "length": reasons["length"], "wrong": len(wrong)}
    ended = f"{reasons['stop']} requests end at a stop token and {reasons['length']} at their limit"
    finding = f"{ended}, each where it has to" if not wrong else f"{len(wrong)} of {len(requests)}: {wrong[0]}"
    if not reasons["stop"]:
        finding += "; no text came to a stop token, so nothing is known of those"
    return Check(ENDS, policy, not wrong, finding, numbers)


def _fault(request: Request, completion: Completion, stop_ids: frozenset[int]) -> str | None:
    """What is wrong with where a text ends."""
    tokens, sampling = completion.token_ids, request.sampling
    stops = [] if sampling.ignore_eos else [i for i, token in enumerate(tokens) if token in stop_ids]
    if stops and stops[0] + 1 < len(tokens):
        return f"goes on behind a stop token, its token {stops[0]}"
    if len(tokens) > sampling.max_tokens:
        return f"has {len(tokens)} tokens and a limit of {sampling.max_tokens}"
    if not stops and len(tokens) < sampling.max_tokens:
        return f"ends after {len(tokens)} of {sampling.max_tokens} tokens without a stop token"
    reason = "stop" if stops else "length"
    return None if completion.finish_reason == reason else f"ends by {reason} and says {completion.finish_reason}"


def _judge_caches(watch: CacheWatch, *, policy: str, dtype: str) -> Check:
    tolerance, worst = TOLERANCES[dtype], watch.worst
    numbers: dict[str, Any] = {"compared": watch.compared, "rollbacks": watch.rollbacks, "tolerance": tolerance}
    if worst is None:
        return Check(CACHES, policy, False, "no request came to a point where its caches could be compared", numbers)
    # Not `error > tolerance`, which a row that is no number would pass.
    passed = worst.error <= tolerance
    numbers |= {"worst_error": worst.error if worst.error == worst.error else None, "worst_in": worst.model}
    if passed:
        finding = (
            f"{watch.compared} times as a fresh prefill leaves them, with {watch.rollbacks} rollbacks "
            f"(rows differ by up to {worst.error:.2g}, {dtype} explains {tolerance:.2g})"
        )
    else:
        finding = (
            f"the {worst.model}'s row of position {worst.position} of request {worst.request} is not what a fresh "
            f"prefill writes: it differs by {worst.error:.2g}, and {dtype} explains {tolerance:.2g}"
        )
    return Check(CACHES, policy, passed, finding, numbers)
