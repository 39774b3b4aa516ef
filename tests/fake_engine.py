"""An engine that answers without a model: jobs and commands are tested against what it must have said."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from dspark.engine.requests import Completion, NotYet, Request, SpecCounts

EOS = 0


class CharCodec:
    """A tokenizer with one token a character."""

    def encode(self, text: str) -> list[int]:
        return [ord(c) for c in text]

    def encode_chat(self, messages: Sequence[dict[str, str]]) -> list[int]:
        return self.encode("".join(f"<{m['role']}>{m['content']}" for m in messages) + "<assistant>")

    def decode(self, token_ids: Sequence[int]) -> str:
        return "".join(chr(t) for t in token_ids)


@dataclass
class FakeStats:
    emitted: int = 0
    prefill_tokens: int = 0
    preemptions: int = 0


class FakeEngine:
    """Answers the prompt in upper case and an end token, two requests at a time, the later one first."""

    stop_ids = frozenset({EOS})
    notes = ()

    def __init__(
        self,
        *,
        concurrency: int = 2,
        identity: str = "fake",
        settings: Mapping[str, Any] = MappingProxyType({}),
        before: Callable[[int], None] = id,
    ) -> None:
        self.concurrency = concurrency
        self.identity = identity
        self.settings = settings
        self.before = before
        self.asked: list[Request] = []
        self.most_open = 0
        self.stats = FakeStats()

    def fingerprint(self) -> dict[str, Any]:
        return {"target": self.identity, "policy": "fixed:3", "device": "cpu", **self.settings}

    def generate(self, requests: Iterable[Request | NotYet]) -> Iterator[Completion]:
        self.stats = FakeStats()
        open_requests: list[Request] = []
        source = iter(requests)
        exhausted = False
        while True:
            while not exhausted and len(open_requests) < self.concurrency:
                request = next(source, None)
                if request is None:
                    exhausted = True
                elif isinstance(request, NotYet):
                    break
                else:
                    open_requests.append(request)
                    self.asked.append(request)
            self.most_open = max(self.most_open, len(open_requests))
            if not open_requests:
                if exhausted:
                    return
                continue
            yield self._answer(open_requests.pop())

    def _answer(self, request: Request) -> Completion:
        self.before(request.index)
        if len(request.prompt_token_ids) > 5000:
            return Completion.failed(request.index, "the prompt is too long")
        text = "".join(chr(t) for t in request.prompt_token_ids).upper()
        tokens = [*map(ord, text), EOS][: request.sampling.max_tokens]
        stopped = tokens[-1] == EOS
        rounds = len(tokens) - 1
        self.stats.emitted += rounds
        self.stats.prefill_tokens += len(request.prompt_token_ids)
        counts = SpecCounts(
            rounds=rounds,
            drafted=3 * rounds,
            verified=3 * rounds,
            observed=rounds,
            accepted=0,
            emitted=rounds,
            acceptance_histogram=(rounds, 0, 0, 0),
        )
        return Completion(request.index, tokens, None, "stop" if stopped else "length", None, counts)


class QuickEngine(FakeEngine):
    """A fake that names no machine: that loads torch, most of the time and memory that such a job takes."""

    def manifest(self) -> dict[str, Any]:
        return {}


class NoProgress:
    def begin(self, meter: object) -> None:
        pass

    def row_done(self, meter: object) -> None:
        pass
