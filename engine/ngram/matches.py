"""Where a text read before as it reads at its end."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class Matches:
    """The longest matches of R texts' ends, each at its most recent place."""

    lengths: NDArray[np.int64]  # [R], tokens that agree; 0: the last token is new to the text
    sources: NDArray[np.int64]  # [R], position of the last token of the earlier place, where there is one


def longest_matches(texts: NDArray[np.int32], ends: NDArray[np.int64], *, longest: int) -> Matches:
    """Of texts [R, C], the first `ends` [R] >= 1 tokens of each row: up to `longest` last tokens, found earlier.

    A scan of whole rows, which costs about a nanosecond a token: an index of all n-grams would find the same, but takes
    longer to build for a prompt than a thousand scans of it.
    """
    num_texts = len(texts)
    lengths = np.zeros(num_texts, dtype=np.int64)
    sources = np.zeros(num_texts, dtype=np.int64)
    last = ends - 1
    same = texts[:, : int(last.max())] == texts[np.arange(num_texts), last][:, None]
    owner, place = np.divmod(np.flatnonzero(same), max(same.shape[1], 1))
    earlier = place < last[owner]
    owner, place = owner[earlier], place[earlier]
    for length in range(1, longest + 1):
        if not owner.size:
            break
        # Places of a text rise, and of several values for one entry the last one stays: the most recent place.
        lengths[owner], sources[owner] = length, place
        longer = (place >= length) & (texts[owner, place - length] == texts[owner, last[owner] - length])
        owner, place = owner[longer], place[longer]
    return Matches(lengths, sources)


def continuations(
    texts: NDArray[np.int32], ends: NDArray[np.int64], matches: Matches, *, steps: int
) -> NDArray[np.int64]:
    """The `steps` tokens that follow each match, [R, steps]; 0 where there is none.

    Behind the text's end its drafted tokens follow, so a text that repeats itself goes on doing so.
    """
    period = ends - 1 - matches.sources
    places = matches.sources[:, None] + 1 + np.arange(steps) % np.maximum(period, 1)[:, None]
    found = (matches.lengths > 0)[:, None]
    tokens = texts[np.arange(len(texts))[:, None], np.where(found, places, 0)]
    return np.where(found, tokens, 0).astype(np.int64)
