"""From rows to requests and back: every row becomes one or more requests, and one record."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from dspark.engine.errors import RequestError
from dspark.engine.jobs.rows import Message, Row, reason
from dspark.engine.requests import NOT_YET, Completion, NotYet, Request, SamplingParams, SpecCounts

Generate = Callable[[Iterable[Request | NotYet]], Iterator[Completion]]
Record = dict[str, Any]
Done = Callable[[int, Record], None]


class TextCodec(Protocol):
    """Text and chats to token ids and back."""

    def encode(self, text: str) -> list[int]:
        """Token ids of raw text."""

    def encode_chat(self, messages: Sequence[Message]) -> list[int]:
        """Token ids of a chat up to where the answer begins."""

    def decode(self, token_ids: Sequence[int]) -> str:
        """Text without special tokens."""


@dataclass(slots=True)
class _Dialogue:
    """A row on its way: what was said and counted so far."""

    row: Row
    sampling: SamplingParams
    messages: list[Message]
    turns_left: deque[str]
    answers: list[str] = field(default_factory=list)
    request_tokens: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    counts: SpecCounts = field(default_factory=SpecCounts)


class Dialogues:
    """Asks rows as the engine has room, later turns of a row with the model's own answers in between.

    A row's next turn is asked as soon as the engine pulls again after the answer.

    Args:
        tokenizer: None where the target has none; only rows of token ids can then be asked.
        sampling: what holds where a row does not say.
        keep_token_ids: give every result row its `token_ids`, not just the rows that asked in token ids.
    """

    def __init__(
        self,
        rows: Iterable[Row],
        tokenizer: TextCodec | None,
        *,
        sampling: SamplingParams,
        stop_ids: frozenset[int],
        keep_token_ids: bool,
    ) -> None:
        self._rows = iter(rows)
        self._tokenizer = tokenizer
        self._sampling = sampling
        self._stop_ids = stop_ids
        self._keep_token_ids = keep_token_ids
        self._open: dict[int, _Dialogue] = {}
        self._follow_ups: deque[Request] = deque()

    def run(self, generate: Generate, done: Done) -> None:
        """Ask everything; `done` gets the index and the record of each row as it finishes."""
        for completion in generate(self._requests(done)):
            record = self._take(completion)
            if record is not None:
                done(completion.index, record)

    def _requests(self, done: Done) -> Iterator[Request | NotYet]:
        for row in self._rows:
            dialogue = _Dialogue(row, self._sampling, list(row.messages or []), deque(row.later_turns))
            try:
                request = self._first(dialogue)
            except RequestError as error:
                done(row.index, _error_record(dialogue, reason(error)))
                continue
            yield request
            while self._follow_ups:
                yield self._follow_ups.popleft()
        while self._open:
            yield self._follow_ups.popleft() if self._follow_ups else NOT_YET

    def _first(self, dialogue: _Dialogue) -> Request:
        row = dialogue.row
        if row.error is not None:
            raise RequestError(row.error)
        dialogue.sampling = replace(self._sampling, **row.settings)
        return self._ask(dialogue)

    def _ask(self, dialogue: _Dialogue) -> Request:
        row = dialogue.row
        token_ids = row.token_ids
        if token_ids is None:
            if self._tokenizer is None:
                raise RequestError("the target has no tokenizer", "Give `prompt_token_ids`.")
            if row.prompt is not None:
                token_ids = self._tokenizer.encode(row.prompt)
            else:
                token_ids = self._tokenizer.encode_chat(dialogue.messages)
        if not token_ids:
            raise RequestError("the prompt is empty after tokenising", "Give a text of at least one token.")
        dialogue.request_tokens = len(token_ids)
        self._open[row.index] = dialogue
        return Request(row.index, token_ids, dialogue.sampling)

    def _take(self, completion: Completion) -> Record | None:
        """Take in an answer; the row's record if it was the last one."""
        dialogue = self._open.pop(completion.index)
        if completion.finish_reason == "error":
            return _error_record(dialogue, str(completion.error))
        text = self._text(completion)
        dialogue.prompt_tokens += dialogue.request_tokens
        dialogue.completion_tokens += len(completion.token_ids)
        dialogue.counts += completion.counts
        if text is not None:
            dialogue.answers.append(text)
        if dialogue.turns_left:
            # Turns are chat rows, which cannot have been asked without a tokenizer.
            assert text is not None
            question = dialogue.turns_left.popleft()
            dialogue.messages += [{"role": "assistant", "content": text}, {"role": "user", "content": question}]
            try:
                self._follow_ups.append(self._ask(dialogue))
            except RequestError as error:
                return _error_record(dialogue, reason(error))
            return None
        return self._record(dialogue, completion, text)

    def _text(self, completion: Completion) -> str | None:
        if completion.text is not None or self._tokenizer is None:
            return completion.text
        token_ids = completion.token_ids
        if completion.finish_reason == "stop" and token_ids and token_ids[-1] in self._stop_ids:
            token_ids = token_ids[:-1]
        return self._tokenizer.decode(token_ids)

    def _record(self, dialogue: _Dialogue, completion: Completion, text: str | None) -> Record:
        record = _record(dialogue, text=text, finish_reason=completion.finish_reason, error=None)
        if self._keep_token_ids or dialogue.row.token_ids is not None:
            record["row"]["token_ids"] = list(completion.token_ids)
        return record


def _error_record(dialogue: _Dialogue, why: str) -> Record:
    # Of a first turn the line says it all; a later one has all turns before it in its prompt.
    turn = f"turn {len(dialogue.answers) + 1}: " if dialogue.answers else ""
    return _record(dialogue, text=None, finish_reason="error", error=f"line {dialogue.row.line}: {turn}{why}")


def _record(dialogue: _Dialogue, *, text: str | None, finish_reason: str, error: str | None) -> Record:
    """A row as dspark's own output shows it, and what that leaves out: two counts, and how it was asked."""
    counts = dialogue.counts
    row: dict[str, Any] = {
        "index": dialogue.row.index,
        "custom_id": dialogue.row.custom_id,
        "text": text,
        "finish_reason": finish_reason,
        "usage": {"prompt_tokens": dialogue.prompt_tokens, "completion_tokens": dialogue.completion_tokens},
        "spec": {
            "rounds": counts.rounds,
            "drafted": counts.drafted,
            "verified": counts.verified,
            "accepted": counts.accepted,
            "acceptance_histogram": list(counts.acceptance_histogram),
        },
        "error": error,
    }
    if dialogue.row.later_turns:
        row["turns"] = list(dialogue.answers)
    return {
        "observed": counts.observed,
        "emitted": counts.emitted,
        "chat": dialogue.row.messages is not None,
        "model": dialogue.row.model,
        "row": row,
    }
