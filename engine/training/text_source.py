"""What the target is asked to write: answers to given prompts, and to questions that it asks itself."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from dspark.engine.errors import RequestError, UsageError
from dspark.engine.jobs.input_file import open_input
from dspark.engine.jobs.rows import Row, read_rows
from dspark.engine.requests import Completion, Request, SamplingParams
from dspark.engine.training.text_file import Text

if TYPE_CHECKING:
    from dspark.engine.jobs.tokenizer import Tokenizer

# A question is asked in so many tokens, or what there is of it is a text by itself.
QUESTION_TOKENS = 192
# Less is not worth an anchor.
_SHORTEST_ANSWER = 16


@dataclass(frozen=True, slots=True)
class Turns:
    """Tokens around a user's turn. `closing` is empty where the target has no chat template: no question is asked."""

    opening: list[int]
    closing: list[int]


@dataclass(frozen=True, slots=True)
class Prompts:
    """Prompts as tokens, and how many rows could not be used."""

    token_ids: list[list[int]]
    unused: int


class TextSource:
    """Requests without end; text i is a function of the seed and of i, except for its own question.

    Even texts answer the given prompts in turn, odd ones questions that the target writes itself (all do without
    prompts). Each prompt meets the temperatures in turn, 0 once only: it would bring the same answer again.

    Args:
        row_tokens: most tokens of a text, prompt included.
        stop_ids: tokens that end a text.
    """

    def __init__(
        self,
        prompts: Sequence[list[int]],
        turns: Turns | None,
        *,
        temperatures: Sequence[float],
        max_tokens: int,
        row_tokens: int,
        stop_ids: frozenset[int],
        seed: int,
        done: frozenset[int] = frozenset(),
    ) -> None:
        if not prompts and turns is None:
            raise UsageError(
                "the target has no tokenizer, so it cannot be asked for text",
                "Give --prompts with `prompt_token_ids` rows, or --data.",
            )
        self._prompts, self._turns = prompts, turns
        self._temperatures = temperatures
        self._max_tokens, self._row_tokens = max_tokens, row_tokens
        self._stop_ids = stop_ids
        self._seed = seed
        self._done = done
        self._open: dict[int, tuple[list[int], float, str]] = {}
        self._questions: deque[Request] = deque()
        self.enough = False

    def requests(self) -> Iterator[Request]:
        """Until somebody sets `enough`."""
        index = 0
        while not self.enough:
            if self._questions:
                yield self._questions.popleft()
                continue
            if index not in self._done:
                yield self._first(index)
            index += 1

    def take(self, completion: Completion) -> Text | None:
        """A finished text; None for a question, which is asked next, and for what failed."""
        index, is_answer = divmod(completion.index, 2)
        prompt, temperature, source = self._open.pop(completion.index)
        if completion.finish_reason == "error":
            return None
        if is_answer:
            return Text(prompt, completion.token_ids, temperature, source, index)
        assert self._turns is not None
        tokens = completion.token_ids
        room = self._row_tokens - len(prompt) - len(tokens) - len(self._turns.closing)
        if not self._turns.closing or completion.finish_reason != "stop" or room < _SHORTEST_ANSWER:
            return Text(prompt, tokens, temperature, "opening", index)
        question = tokens[:-1] if tokens[-1] in self._stop_ids else tokens
        answer_temperature = self._temperatures[int(self._random(index).integers(len(self._temperatures)))]
        asked = [*prompt, *question, *self._turns.closing]
        self._questions.append(self._request(2 * index + 1, asked, answer_temperature, "question"))
        return None

    def _first(self, index: int) -> Request:
        if self._prompts and (index % 2 == 0 or self._turns is None):
            number = index // 2 if self._turns is not None else index
            turn, place = divmod(number, len(self._prompts))
            count = len(self._temperatures)
            temperature = self._temperatures[(place + turn) % count]
            if temperature == 0 and turn >= count:
                temperature = max(self._temperatures)
            return self._request(2 * index + 1, self._prompts[place], temperature, "prompt")
        assert self._turns is not None
        limit = QUESTION_TOKENS if self._turns.closing else self._max_tokens
        # Asked at temperature 1: a greedy target asks the same question again and again.
        return self._request(2 * index, self._turns.opening, 1.0, "opening", max_tokens=limit)

    def _request(
        self, index: int, prompt: list[int], temperature: float, source: str, max_tokens: int | None = None
    ) -> Request:
        self._open[index] = (prompt, temperature, source)
        limit = min(max_tokens or self._max_tokens, self._row_tokens - len(prompt))
        return Request(index, prompt, SamplingParams(temperature=temperature, max_tokens=limit))

    def _random(self, index: int) -> np.random.Generator:
        return np.random.default_rng([self._seed, index])


def read_prompts(path: str, tokenizer: Tokenizer | None, *, most_tokens: int) -> Prompts:
    """Prompts of a file in any of the forms that `decode` takes, first turns alone.

    Raises:
        UsageError: the file cannot be read, or no row of it can be used.
    """
    prompts, unused, why = [], 0, ""
    file = open_input(path, flag="--prompts")
    try:
        for row in read_rows(file.lines(), all_turns=False):
            try:
                tokens = _tokens_of(row, tokenizer)
                if len(tokens) > most_tokens:
                    raise RequestError(f"a prompt of {len(tokens)} tokens is longer than {most_tokens}")
            except RequestError as error:
                unused, why = unused + 1, why or f"line {row.line}: {error}"
                continue
            prompts.append(tokens)
    finally:
        file.close()
    if not prompts:
        raise UsageError(f"no row of {path} can be used ({why or 'it is empty'})", "Check the file given to --prompts.")
    return Prompts(prompts, unused)


def user_turns(tokenizer: Tokenizer | None, *, eos_token_id: int | None) -> Turns | None:
    """How the chat template opens and closes a user's turn; without one, how a text begins."""
    if tokenizer is None:
        return None
    try:
        chats = [tokenizer.encode_chat([{"role": "user", "content": content}]) for content in ("Why", "0")]
    except RequestError:
        opening = tokenizer.encode("") or ([] if eos_token_id is None else [eos_token_id])
        return Turns(opening, []) if opening else None
    # What two chats share before and behind their contents.
    opening = _common_start(*chats)
    behind = _common_start(*(chat[len(opening) :][::-1] for chat in chats))
    return Turns(opening, behind[::-1])


def _common_start(one: list[int], other: list[int]) -> list[int]:
    length = 0
    while length < min(len(one), len(other)) and one[length] == other[length]:
        length += 1
    return one[:length]


def _tokens_of(row: Row, tokenizer: Tokenizer | None) -> list[int]:
    if row.error is not None:
        raise RequestError(row.error)
    tokens = row.token_ids
    if tokens is None:
        if tokenizer is None:
            raise RequestError("the target has no tokenizer")
        tokens = tokenizer.encode(row.prompt) if row.prompt is not None else tokenizer.encode_chat(row.messages or [])
    if not tokens:
        raise RequestError("the prompt is empty after tokenising")
    return tokens
