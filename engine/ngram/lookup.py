"""Looks drafts up in the texts of a run, and learns from what those texts become."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dspark.engine.ngram.drafter import NgramDrafter
from dspark.engine.ngram.hit_rates import HitRates
from dspark.engine.ngram.matches import continuations, longest_matches
from dspark.engine.slots import SlotTable


@dataclass(frozen=True, slots=True)
class Proposals:
    """Drafted tokens of R requests, known to the host before it orders a round."""

    tokens: NDArray[np.int64]  # [R, steps]
    counts: NDArray[np.int64]  # [R], tokens drafted: all steps, or none where nothing matches
    confidence_logits: NDArray[np.float32]  # [R, steps], NaN where nothing is drafted


class Lookup:
    """Drafts for the requests of a slot table, whose texts the host must know in full.

    A draft is a function of the text so far, and its confidence one of match lengths and of older drafts' luck; so
    neither gives away anything of what the target is about to say.
    """

    def __init__(self, slots: SlotTable, drafter: NgramDrafter, *, learns: bool = True) -> None:
        num_slots = len(slots.status)
        self._slots = slots
        self._longest = drafter.longest_match
        self._learns = learns
        self._rates = HitRates(drafter.longest_match)
        # The newest draft of each slot, until the text has gone on.
        self._serials = np.full(num_slots, -1, dtype=np.int64)  # whose it is
        self._starts = np.zeros(num_slots, dtype=np.int64)  # text position of its first token
        self._counts = np.zeros(num_slots, dtype=np.int64)  # tokens of it
        self._lengths = np.zeros(num_slots, dtype=np.int64)  # its match length
        self._tokens = np.zeros((num_slots, drafter.block_size), dtype=np.int64)

    def propose(self, rows: NDArray[np.int64], steps: int) -> Proposals:
        """Draft `steps` tokens for each of slots `rows` [R], up to the drafter's block size."""
        slots = self._slots
        ends = slots.context_len[rows] + 1
        texts = slots.tokens[rows, : int(ends.max())]  # [R, C]
        if self._learns:
            self._learn(rows, texts, ends)
        matches = longest_matches(texts, ends, longest=self._longest)
        tokens = continuations(texts, ends, matches, steps=steps)
        found = matches.lengths > 0
        counts = np.where(found, steps, 0)
        self._serials[rows], self._starts[rows], self._counts[rows] = slots.serial[rows], ends, counts
        self._lengths[rows], self._tokens[rows, :steps] = matches.lengths, tokens
        levels = self._levels(np.maximum(matches.lengths, 1), steps)
        return Proposals(
            tokens=tokens,
            counts=counts,
            confidence_logits=np.where(found[:, None], self._rates.logits(levels), np.float32(np.nan)),
        )

    def _levels(self, lengths: NDArray[np.int64], steps: int) -> NDArray[np.int64]:
        """Match lengths [R] of blocks -> of their tokens [R, steps], given that those before passed."""
        return np.minimum(lengths[:, None] + np.arange(steps), self._longest)

    def _learn(self, rows: NDArray[np.int64], texts: NDArray[np.int32], ends: NDArray[np.int64]) -> None:
        """Hold the last draft of each slot against its text [R, C].

        A drafted token was certain, so it passes exactly if the target says it: the text tells that of tokens nobody
        verified too.
        """
        offsets = np.arange(self._tokens.shape[1])
        counts = np.where(self._serials[rows] == self._slots.serial[rows], self._counts[rows], 0)
        places = self._starts[rows, None] + offsets
        written = (offsets < counts[:, None]) & (places < ends[:, None])
        places = np.where(written, places, 0)
        hits = written & (texts[np.arange(len(rows))[:, None], places] == self._tokens[rows])
        # A miss is the last that a block tells.
        before = np.logical_and.accumulate(hits, axis=1)
        told = written & np.concatenate([np.ones((len(rows), 1), dtype=bool), before[:, :-1]], axis=1)
        self._rates.add(self._levels(self._lengths[rows], len(offsets))[told], hits[told])
