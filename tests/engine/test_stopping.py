"""Stop strings against a plain search in the whole text."""

from collections.abc import Callable, Sequence

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from dspark.engine.stopping import StopText

ALPHABET = sorted(pre_tokenizers.ByteLevel.alphabet())


def _byte_tokenizer() -> Tokenizer:
    """One token a byte: every character beyond ASCII is spread over several tokens."""
    tokenizer = Tokenizer(models.BPE(vocab={piece: i for i, piece in enumerate(ALPHABET)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<end>"])
    return tokenizer


TOKENIZER = _byte_tokenizer()


def _feed(watcher: StopText, tokens: Sequence[int], size: int) -> int | None:
    """Feed in rounds of `size`; how many tokens stay in all, or None."""
    for start in range(0, len(tokens), size):
        kept = watcher.feed(tokens[start : start + size])
        if kept is not None:
            return start + kept
    return None


def _searched(decode: Callable[[Sequence[int]], str], tokens: Sequence[int], stops: Sequence[str]) -> tuple:
    """The first number of tokens whose whole text holds a stop string, and the text before it."""
    for count in range(1, len(tokens) + 1):
        text = decode(tokens[:count])
        found = [text.find(stop) for stop in stops if stop in text]
        if found:
            return count, text[: min(found)]
    return None, ""


@pytest.mark.parametrize("size", [1, 2, 3, 8, 100])
@pytest.mark.parametrize(
    ("text", "stops"),
    [
        ("one two STOP three", ["STOP"]),
        ("one\n\ntwo", ["\n\n"]),
        ("aaab", ["aab"]),
        ("xxabcd", ["bcd", "abc"]),
        ("no such thing", ["STOP"]),
        ("caf\u00e9 \u4f60\u597d \U0001f600 end", ["\U0001f600"]),
        ("\u4f60\u597d\u4e16\u754c", ["\u597d\u4e16"]),
        ("START", ["S"]),
    ],
    ids=["word", "newlines", "overlap", "two-stops", "absent", "emoji", "wide", "first-token"],
)
def test_stop_strings_across_rounds(text: str, stops: list[str], size: int) -> None:
    tokens = TOKENIZER.encode(text).ids
    watcher = StopText(TOKENIZER.decode, stops)
    kept = _feed(watcher, tokens, size)
    assert (kept, watcher.text) == _searched(TOKENIZER.decode, tokens, stops)
    assert watcher.stopped == (kept is not None)


@settings(deadline=None, max_examples=200)
@given(
    text=st.text(alphabet="ab \n\u00e9\u4f60\U0001f600", max_size=40),
    stops=st.lists(st.text(alphabet="ab \u00e9\u4f60", min_size=1, max_size=4), min_size=1, max_size=3),
    size=st.integers(1, 9),
)
def test_any_text_equals_the_whole_search(text: str, stops: list[str], size: int) -> None:
    tokens = TOKENIZER.encode(text).ids
    watcher = StopText(TOKENIZER.decode, stops)
    kept = _feed(watcher, tokens, size)
    assert (kept, watcher.text) == _searched(TOKENIZER.decode, tokens, stops)


def test_special_tokens_have_no_text() -> None:
    end = TOKENIZER.token_to_id("<end>")
    a, b = TOKENIZER.encode("ab").ids
    watcher = StopText(TOKENIZER.decode, ["ab"])
    assert _feed(watcher, [a, end, end, b, a], 2) == 4
    assert watcher.text == ""


def test_broken_bytes_do_not_stall_the_search() -> None:
    broken = TOKENIZER.encode("\u4f60").ids[0]
    tokens = [broken] * 50 + TOKENIZER.encode("then STOP").ids
    watcher = StopText(TOKENIZER.decode, ["STOP"])
    assert _feed(watcher, tokens, 4) == len(tokens)
    assert watcher.text.endswith("then ")


@settings(deadline=None, max_examples=200)
@given(
    text=st.text(alphabet="ab\ufffd\u4f60", max_size=20),
    stop=st.text(alphabet="ab\ufffd", min_size=1, max_size=3),
    size=st.integers(1, 9),
)
@example(text="ab\ufffd", stop="b\ufffd", size=4)
def test_a_replacement_character_in_the_text_is_text_at_the_end_too(text: str, stop: str, size: int) -> None:
    watcher = StopText(TOKENIZER.decode, [stop])
    kept = _feed(watcher, TOKENIZER.encode(text).ids, size)
    assert watcher.finish() == watcher.stopped == (stop in text)
    assert watcher.text == (text[: text.index(stop)] if stop in text else "")
    # Only replacement characters at the very end may be held back until then: they may be halves of something else.
    if stop in text.rstrip("\ufffd"):
        assert kept is not None
    if kept is not None:
        assert stop in text


def test_pieces_that_carry_their_blank_in_front() -> None:
    vocabulary = [("<unk>", 0.0), ("\u2581one", -1.0), ("\u2581two", -1.0), ("s", -1.0), ("\u2581", -2.0)]
    tokenizer = Tokenizer(models.Unigram(vocabulary, 0, False))
    tokenizer.decoder = decoders.Metaspace()
    tokens = [1, 2, 3, 1, 4, 2]
    for stops in (["one two"], ["twos"], [" one"], ["  two"]):
        watcher = StopText(tokenizer.decode, stops)
        assert (_feed(watcher, tokens, 1), watcher.text) == _searched(tokenizer.decode, tokens, stops)
