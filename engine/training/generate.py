"""The text phase: the target writes until time or tokens are used up."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from dspark.engine.requests import Completion, Request
from dspark.engine.training.text_file import TextFile
from dspark.engine.training.text_source import TextSource


class WritingEngine(Protocol):
    """What the text phase needs of an engine."""

    def generate(self, requests: Iterable[Request]) -> Iterator[Completion]:
        """Completions in the order in which they finish; pulls requests as it has room for them."""


@dataclass(frozen=True, slots=True)
class TextBudget:
    """The text phase ends at whichever comes first; what has been begun is finished."""

    time_s: float | None
    tokens: int | None

    def share_used(self, elapsed_s: float, num_tokens: int) -> float:
        """From 0 to 1 and beyond."""
        time_share = 0.0 if self.time_s is None else elapsed_s / self.time_s
        return max(time_share, 0.0 if self.tokens is None else num_tokens / self.tokens)


@dataclass(frozen=True, slots=True)
class TextProgress:
    """How far the text phase is."""

    texts: int
    tokens: int
    elapsed_s: float
    share: float  # of the budget


def write_texts(
    engine: WritingEngine,
    source: Callable[[frozenset[int]], TextSource],
    path: Path,
    *,
    budget: TextBudget,
    resume: bool,
    report: Callable[[TextProgress], None],
    clock: Callable[[], float] = time.monotonic,
) -> TextProgress:
    """Fill `path` with texts; interrupted, what there is stays in `<path>.partial` and counts when resumed.

    source: makes the requests, given the indices of the texts that are there already.
    """
    file = TextFile(path, resume=resume)
    with closing(file):
        there = list(file.texts())
        texts, tokens = len(there), sum(text.num_tokens for text in there)
        before_s = max((text.elapsed_s for text in there), default=0.0)
        requests = source(frozenset(text.index for text in there))
        started = clock()

        def progress() -> TextProgress:
            elapsed_s = before_s + clock() - started
            return TextProgress(texts, tokens, elapsed_s, budget.share_used(elapsed_s, tokens))

        requests.enough = progress().share >= 1
        for completion in engine.generate(requests.requests()):
            text = requests.take(completion)
            now = progress()
            if text is not None:
                file.append(replace(text, elapsed_s=round(now.elapsed_s, 3)))
                texts, tokens = texts + 1, tokens + text.num_tokens
                now = progress()
            # No more is asked, but what has been begun is finished: short texts would have an advantage.
            requests.enough = now.share >= 1
            report(now)
        file.publish()
        return progress()
