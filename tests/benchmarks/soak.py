"""A long run under changing load: does every page come back, and does memory stay flat?

    python tests/benchmarks/soak.py [--minutes 20] [--concurrency 64] [--device auto] [--policy async --profile FILE]

Clients ask, wait for the answer, and think for a random time before they ask again, half as many again as there are
slots. Prompts, lengths, temperatures, truncations, stop strings and end tokens are drawn anew for each request, and the
KV pool is too small for all of them, so requests are preempted. Greedy requests repeat: each must say what it said
first, unless the rounding of another batch tips it, which is counted (in float32 on a CPU it never does).
"""

from __future__ import annotations

import argparse
import heapq
import itertools
import resource
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from unittest.mock import patch

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

from dspark.engine import Completion, Engine, EngineConfig, Request, SamplingParams
from dspark.engine import loop as decode_loop
from dspark.engine.jobs.tokenizer import Tokenizer
from dspark.engine.kv_pool import PagePool
from dspark.engine.models.aliases import DEFAULT_DRAFTER, DEFAULT_TARGET
from dspark.engine.models.resolve import resolve_drafter, resolve_target
from dspark.engine.requests import NOT_YET, NotYet

LONGEST, THINK_S = 512, 0.5
KINDS = ("sentences", "short poems", "questions", "lines of Python")
TOPICS = ("rivers", "prime numbers", "a cat", "sorting")
QUESTIONS = [f"Write {count} {kind} about {topic}." for count in ("two", "some") for kind in KINDS for topic in TOPICS]
STOPS = ((), (), (".",), ("\n\n", "the end"), ("and",))


@dataclass(slots=True)
class Clients:
    """Requests as so many clients send them, until `until_s`; `finished` takes the answers in."""

    tokenizer: Tokenizer
    count: int
    until_s: float
    greedy_texts: dict[tuple[int, int, tuple[str, ...]], list[int]] = field(default_factory=dict)
    asked: dict[int, tuple[int, SamplingParams]] = field(default_factory=dict)
    differing: int = 0
    answers: int = 0
    tokens: int = 0
    reasons: dict[str, int] = field(default_factory=dict)
    _due_s: list[float] = field(default_factory=list)
    _draw: np.random.Generator = field(default_factory=lambda: np.random.default_rng(0))

    def requests(self) -> Iterator[Request | NotYet]:
        self._due_s = sorted(time.monotonic() + self._draw.exponential(THINK_S, self.count))
        for index in itertools.count():
            while not self._due_s or self._due_s[0] > time.monotonic():
                if time.monotonic() > self.until_s:
                    return
                if self.asked:
                    yield NOT_YET
                else:
                    time.sleep(0.001)
            if time.monotonic() > self.until_s:
                return
            heapq.heappop(self._due_s)
            question, sampling = self._drawn()
            self.asked[index] = (question, sampling)
            prompt = self.tokenizer.encode_chat([{"role": "user", "content": QUESTIONS[question]}])
            yield Request(index, prompt, sampling)

    def _drawn(self) -> tuple[int, SamplingParams]:
        draw = self._draw
        question = int(draw.integers(len(QUESTIONS)))
        greedy = draw.random() < 0.3
        return question, SamplingParams(
            temperature=0.0 if greedy else float(draw.choice([0.6, 1.0])),
            top_k=0 if greedy else int(draw.choice([0, 0, 40])),
            top_p=1.0 if greedy else float(draw.choice([1.0, 1.0, 0.9])),
            max_tokens=int(draw.choice([1, 16, 64, 200, 384])),
            seed=int(draw.integers(1 << 40)),
            stop=STOPS[int(draw.integers(len(STOPS)))],
            ignore_eos=bool(draw.random() < 0.3) and not greedy,
        )

    def finished(self, completion: Completion) -> None:
        assert completion.error is None, completion.error
        question, sampling = self.asked.pop(completion.index)
        self.answers += 1
        self.tokens += len(completion.token_ids)
        self.reasons[completion.finish_reason] = self.reasons.get(completion.finish_reason, 0) + 1
        heapq.heappush(self._due_s, time.monotonic() + self._draw.exponential(THINK_S))
        if sampling.temperature == 0:
            key = (question, sampling.max_tokens, sampling.stop)
            first = self.greedy_texts.setdefault(key, completion.token_ids)
            self.differing += first != completion.token_ids


@dataclass(frozen=True, slots=True)
class Moment:
    """What memory holds after so many seconds."""

    seconds: float
    answers: int
    rss_mb: float
    gpu_mb: float


def _resident_mb() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() / 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=20)
    parser.add_argument("--concurrency", type=int, default=64)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--policy", default="threshold:0.5")
    parser.add_argument("--profile", type=Path)
    parser.add_argument("--tokens-each", type=int, default=LONGEST // 8, help="cache of a request: few, to preempt")
    options = parser.parse_args()
    target = resolve_target(DEFAULT_TARGET)
    tokenizer = Tokenizer.load(target)
    assert tokenizer is not None
    engine = Engine(
        EngineConfig(
            target=str(target),
            drafter=str(resolve_drafter(DEFAULT_DRAFTER)),
            device=options.device,
            policy=options.policy,
            profile=None if options.profile is None else str(options.profile),
            concurrency=options.concurrency,
            max_context=LONGEST,
            kv_cache_tokens=options.concurrency * options.tokens_each,
        ),
        detokenizer=tokenizer,
    )
    started = time.monotonic()
    clients = Clients(tokenizer, options.concurrency * 3 // 2, started + 60 * options.minutes)
    moments: list[Moment] = []
    pools: list[PagePool] = []

    def recorded(*args: object, **settings: object) -> PagePool:
        pools.append(PagePool(*args, **settings))  # type: ignore[arg-type]
        return pools[-1]

    with patch.object(decode_loop, "PagePool", recorded):
        for completion in engine.generate(clients.requests()):
            clients.finished(completion)
            seconds = time.monotonic() - started
            if seconds > len(moments) * 60 * options.minutes / 20:
                gpu = torch.cuda.memory_reserved() / 1e6 if engine.device.type == "cuda" else 0.0
                moments.append(Moment(seconds, clients.answers, _resident_mb(), gpu))
    (pool,) = pools
    pages = engine.num_pages - 1  # one is padding
    console = Console(width=140)
    table = Table("seconds", "answers", "resident MB", "GPU MB")
    for moment in moments:
        table.add_row(f"{moment.seconds:.0f}", f"{moment.answers:,}", f"{moment.rss_mb:,.0f}", f"{moment.gpu_mb:,.0f}")
    console.print(table)
    stats = engine.stats
    console.print(
        f"{clients.answers:,} answers ({clients.reasons}), {clients.tokens:,} tokens, {stats.rounds:,} rounds, "
        f"{stats.preemptions:,} preemptions; {clients.differing} greedy answers differ from the first of their kind; "
        f"free pages at the end {pool.num_free} of {pages}"
    )
    assert pool.num_free == pages, "pages were lost"
    assert not clients.asked, "requests were lost"


if __name__ == "__main__":
    main()
