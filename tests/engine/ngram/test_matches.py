"""What is looked up, against reading a text place by place."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dspark.engine.ngram.matches import continuations, longest_matches

LONGEST, STEPS = 4, 6
# Few different tokens, so that texts repeat themselves.
TEXTS = st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=40), min_size=1, max_size=5)


def read_back(text: list[int], longest: int) -> tuple[int, int | None]:
    """Length of the longest match of the text's end, and where its most recent place ends."""
    for length in range(min(longest, len(text) - 1), 0, -1):
        for last in range(len(text) - 2, length - 2, -1):
            if text[last + 1 - length : last + 1] == text[-length:]:
                return length, last
    return 0, None


def read_on(text: list[int], last: int, steps: int) -> list[int]:
    """The text behind `last`, written on while it is read."""
    written = list(text)
    for step in range(steps):
        written.append(written[last + 1 + step])
    return written[len(text) :]


def padded(texts: list[list[int]], rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Rows of one width; what lies behind a text may be anything."""
    ends = np.array([len(text) for text in texts])
    rows = rng.integers(0, 4, (len(texts), ends.max() + 3), dtype=np.int32)
    for row, text in zip(rows, texts, strict=True):
        row[: len(text)] = text
    return rows, ends


@settings(max_examples=300, deadline=None)
@given(TEXTS, st.integers(0, 2**32 - 1))
def test_matches_and_what_follows_them_are_those_of_a_plain_search(texts: list[list[int]], seed: int) -> None:
    rows, ends = padded(texts, np.random.default_rng(seed))
    found = longest_matches(rows, ends, longest=LONGEST)
    drafts = continuations(rows, ends, found, steps=STEPS)
    for i, text in enumerate(texts):
        length, last = read_back(text, LONGEST)
        assert found.lengths[i] == length
        if last is None:
            assert not drafts[i].any()
        else:
            assert found.sources[i] == last
            assert drafts[i].tolist() == read_on(text, last, STEPS)


@pytest.mark.parametrize(
    ("text", "draft"),
    [
        ([5, 6, 7, 8, 9, 5, 6], [7, 8, 9, 5, 6, 7]),
        ([1, 2, 3, 1, 2, 4, 9, 1, 2], [4, 9, 1, 2, 4, 9]),
        ([9, 1, 2, 3, 8, 2, 4, 9, 1, 2], [3, 8, 2, 4, 9, 1]),
        ([4, 4], [4, 4, 4, 4, 4, 4]),
    ],
    ids=["once-before", "most-recent", "longer-beats-more-recent", "a-repeated-token"],
)
def test_a_text_goes_on_as_it_did_before(text: list[int], draft: list[int]) -> None:
    rows, ends = np.array([text], dtype=np.int32), np.array([len(text)])
    assert continuations(rows, ends, longest_matches(rows, ends, longest=8), steps=6).tolist() == [draft]
