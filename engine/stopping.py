"""Where a text ends: stop strings among the tokens that a round emitted. Stop tokens are found on the device."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

_REPLACEMENT = "\ufffd"
# A character takes at most four tokens; a tail that stays unfinished longer than this holds broken bytes.
_LONGEST_UNFINISHED = 16


class Detokenizer(Protocol):
    """What the engine needs of a tokenizer, to follow stop strings and to know the tokenizer's own end token."""

    @property
    def eos_token_id(self) -> int | None:
        """The token that ends a text."""

    def decode(self, token_ids: Sequence[int]) -> str:
        """Text of `token_ids`, special tokens left out."""


class TextStream:
    """Text of a growing token sequence, a piece at a time.

    A token's text can depend on its neighbours (a character spread over several tokens, a blank that only stands
    between words), so each piece is the difference between two decodings of a short window.
    """

    def __init__(self, decode: Callable[[Sequence[int]], str]) -> None:
        self._decode = decode
        self._window: list[int] = []
        self._seen = 0  # tokens of the window whose text is out

    def push(self, token: int) -> tuple[str, bool]:
        """The text not yet final after this token, and whether it is final now: it is then not returned again."""
        self._window.append(token)
        before = self._decode(self._window[: self._seen])
        # The text of the tokens before may itself change in a longer window; only what is beyond its length is new.
        fresh = self._decode(self._window)[len(before) :]
        unfinished = len(self._window) - self._seen
        if fresh.endswith(_REPLACEMENT) and unfinished < _LONGEST_UNFINISHED:
            return fresh.rstrip(_REPLACEMENT), False
        if not fresh and unfinished < _LONGEST_UNFINISHED:
            return "", False
        self._window = self._window[self._seen :]
        self._seen = len(self._window)
        return fresh, True

    def rest(self) -> str:
        """The text not yet final, once no more tokens come: what looks like an unfinished character is text too."""
        return self._decode(self._window)[len(self._decode(self._window[: self._seen])) :]


class StopText:
    """Watches one request's text for its stop strings, which may begin and end in different rounds.

    Args:
        decode: token ids to text, special tokens left out.
        stops: non-empty strings.
    """

    def __init__(self, decode: Callable[[Sequence[int]], str], stops: Iterable[str]) -> None:
        self._stops = tuple(stops)
        self._longest = max(map(len, self._stops))
        self._stream = TextStream(decode)
        self._final = ""
        self.stopped = False
        self.text = ""  # up to the stop string, once stopped

    def feed(self, tokens: Sequence[int]) -> int | None:
        """Take in a round's tokens. If one completes a stop string: how many of them stay, that one included."""
        for index, token in enumerate(tokens):
            fresh, is_final = self._stream.push(token)
            text = self._final + fresh if fresh else self._final
            if self._search(text):
                return index + 1
            if is_final:
                self._final = text
        return None

    def finish(self) -> bool:
        """No more tokens come: search what was held back as an unfinished character. Was a stop string there?"""
        return self.stopped or self._search(self._final + self._stream.rest())

    def _search(self, text: str) -> bool:
        # Text before `_final` was searched already; a stop string can reach back by its length less one.
        start = max(len(self._final) - self._longest + 1, 0)
        found = [at for at in (text.find(stop, start) for stop in self._stops) if at >= 0]
        if found:
            self.stopped, self.text = True, text[: min(found)]
        return bool(found)
