"""Texts to train on, as one flat array, and the rows that they are packed into."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from hashlib import blake2b

import numpy as np

from dspark.engine.errors import UsageError
from dspark.engine.training.text_file import Text

_HELD_OUT_SHARE = 0.02
_FEWEST_HELD_OUT, _MOST_HELD_OUT = 16, 512


@dataclass(frozen=True, slots=True)
class Documents:
    """D texts on one flat token axis; anchors lie in what the target wrote, behind each text's prompt."""

    tokens: np.ndarray  # [sum of lengths] int32
    starts: np.ndarray  # [D+1] int64
    prompt_lengths: np.ndarray  # [D] int64
    temperatures: np.ndarray  # [D] float64

    @classmethod
    def from_texts(cls, texts: Iterable[Text], *, most_tokens: int) -> Documents:
        """Texts cut to `most_tokens`; those that leave no block to predict are left out."""
        tokens, lengths, prompts, temperatures = [], [0], [], []
        for text in texts:
            whole = [*text.prompt_token_ids, *text.token_ids][:most_tokens]
            if len(whole) < len(text.prompt_token_ids) + 2:
                continue
            tokens.append(np.array(whole, dtype=np.int32))
            lengths.append(len(whole))
            prompts.append(len(text.prompt_token_ids))
            temperatures.append(text.temperature)
        flat = np.concatenate(tokens) if tokens else np.zeros(0, np.int32)
        return cls(flat, np.cumsum(lengths), np.array(prompts, np.int64), np.array(temperatures, np.float64))

    def __len__(self) -> int:
        return len(self.prompt_lengths)

    @property
    def lengths(self) -> np.ndarray:
        """Tokens of each text, [D]."""
        return np.diff(self.starts)

    def document(self, index: int) -> np.ndarray:
        """Tokens of one text, prompt included."""
        return self.tokens[self.starts[index] : self.starts[index + 1]]

    @property
    def share_prompt(self) -> bool:
        """Whether all texts stand behind one prompt, so that they can only be told apart as a whole."""
        first = self._prompt(0).tobytes() if len(self) else b""
        return all(self._prompt(index).tobytes() == first for index in range(1, len(self)))

    def held_out(self) -> np.ndarray:
        """[D] bool: a share of the texts, by a hash of their prompts: no prompt is on both sides.

        Of texts that share their prompt the hash is of the whole text. Prompts are taken whole, in the order of their
        hashes, as far as half of the texts remain; so both sides have some unless all texts are one.
        """
        whole = self.share_prompt
        parts = (self.document(index) if whole else self._prompt(index) for index in range(len(self)))
        ranks = np.array([_rank(tokens) for tokens in parts], dtype=np.int64)
        fewest = min(_FEWEST_HELD_OUT, len(self) // 4)
        wanted = min(max(round(_HELD_OUT_SHARE * len(self)), fewest, 1), _MOST_HELD_OUT)
        groups, group_of, sizes = np.unique(ranks, return_inverse=True, return_counts=True)
        chosen, count = np.zeros(len(groups), dtype=bool), 0
        for group, size in enumerate(sizes.tolist()):
            if count < wanted and count + size <= len(self) // 2:
                chosen[group] = True
                count += size
        return chosen[group_of]

    def _prompt(self, index: int) -> np.ndarray:
        start = self.starts[index]
        return self.tokens[start : start + self.prompt_lengths[index]]


def _rank(tokens: np.ndarray) -> int:
    return int.from_bytes(blake2b(tokens.tobytes(), digest_size=4).digest(), "little")


def pack_rows(lengths: Sequence[int], *, capacity: int, order: np.ndarray) -> list[list[int]]:
    """Put the texts `order` into rows of `capacity` tokens, the longest first, each where it leaves the least room."""
    rows: list[list[int]] = []
    spaces: list[tuple[int, int]] = []  # (tokens left, row), ascending
    for index in sorted(order.tolist(), key=lambda index: -lengths[index]):
        length = lengths[index]
        place = bisect_left(spaces, (length, -1))
        if place == len(spaces):
            rows.append([index])
            left, row = capacity - length, len(rows) - 1
        else:
            space, row = spaces.pop(place)
            rows[row].append(index)
            left = space - length
        if left:
            insort(spaces, (left, row))
    return rows


def check_enough(documents: Documents, held_out: np.ndarray) -> None:
    """Refuse texts that cannot be trained and measured on.

    Raises:
        UsageError: with the reason.
    """
    if len(documents) < 2:
        raise UsageError(
            f"{len(documents)} texts of a usable length are too few: some are trained on, others are held out",
            "Generate more text (--text-minutes), or give --data a larger file.",
        )
    if not held_out.any():
        raise UsageError(
            f"all {len(documents)} texts are the same one, so none can be held out to measure on",
            "Give --prompts more prompts or --temperatures above 0, or --data other texts.",
        )
    temperatures = documents.temperatures[held_out]
    if not np.isin(temperatures, (0.0, 1.0)).any():
        raise UsageError(
            "none of the held-out texts was written at temperature 1 or 0, so acceptance cannot be measured",
            "Have 1 among --temperatures.",
        )
