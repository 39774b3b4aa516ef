"""Confidence that rests on older drafts alone."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from dspark.engine import Request, SamplingParams
from dspark.engine.errors import UsageError
from dspark.engine.ngram.drafter import NgramDrafter
from dspark.engine.ngram.hit_rates import HitRates
from dspark.engine.ngram.lookup import Lookup
from dspark.engine.slots import RUNNING, SlotTable

GAMMA = 3
DRAFTER = NgramDrafter(block_size=GAMMA, longest_match=2)


def rate(logits: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-logits.astype(np.float64)))


def prior(longest: int = 2) -> np.ndarray:
    """Rates of match lengths 1 .. longest, before anything was seen."""
    return rate(HitRates(longest).logits(np.arange(1, longest + 1)))


class Texts:
    """Slots whose requests have a text, which grows as told."""

    def __init__(self, *texts: list[int]) -> None:
        self.slots = SlotTable(len(texts), max_context=64, gamma=GAMMA)
        for slot, text in enumerate(texts):
            self.arrive(slot, text)

    def arrive(self, slot: int, text: list[int]) -> None:
        self.slots.arrive(slot, Request(slot, text[:-1], SamplingParams(max_tokens=40)), seed=0)
        self.slots.status[slot] = RUNNING
        # The last token is the anchor.
        self.slots.tokens[slot, len(text) - 1] = text[-1]

    def grow(self, slot: int, *tokens: int) -> None:
        anchor = self.slots.context_len[slot]
        self.slots.tokens[slot, anchor + 1 : anchor + 1 + len(tokens)] = tokens
        self.slots.context_len[slot] += len(tokens)


def test_a_longer_match_is_believed_more() -> None:
    rates = prior(10)
    assert (np.diff(rates) >= 0).all() and 0 < rates[0] < rates[-1] < 1
    # Nothing is known of what is longer than the prior.
    assert rates[8] == rates[9] == rates[7]


def test_rates_are_the_means_of_a_beta_posterior() -> None:
    rates = HitRates(2)
    rates.add(np.array([1, 2, 1, 1]), np.array([True, False, True, False]))
    before, after = prior(), rate(rates.logits(np.array([1, 2])))
    # A prior of n drafts: (n * rate + hits) / (n + drafts), with the same n for both lengths.
    n = [(hits - after[i] * drafts) / (after[i] - before[i]) for i, (hits, drafts) in enumerate([(2, 3), (0, 1)])]
    assert n[0] == pytest.approx(n[1], rel=1e-4) and n[0] > 0


def test_each_token_of_a_block_has_a_longer_match_than_the_one_before() -> None:
    lookup = Lookup(Texts([1, 2, 3, 9, 1], [7, 8, 9]).slots, DRAFTER)
    proposals = lookup.propose(np.array([0, 1]), GAMMA)
    assert proposals.tokens[0].tolist() == [2, 3, 9]
    assert proposals.counts.tolist() == [GAMMA, 0]
    np.testing.assert_allclose(rate(proposals.confidence_logits[0]), prior()[[0, 1, 1]], rtol=1e-5)
    assert np.isnan(proposals.confidence_logits[1]).all()


def posterior(lookup: Lookup, hits: Counter, drafts: Counter) -> None:
    """Holds the confidence of a block of match length 1 against counts by match length."""
    expected = HitRates(2)
    for length in (1, 2):
        for i in range(drafts[length]):
            expected.add(np.array([length]), np.array([i < hits[length]]))
    found = lookup.propose(np.array([0]), GAMMA).confidence_logits[0, :2]
    np.testing.assert_allclose(found, expected.logits(np.array([1, 2])), rtol=1e-6)


@pytest.mark.parametrize(
    ("came", "hits", "drafts"),
    [
        # Drafted: 2 3 9, behind a match of one token.
        ((5, 1), Counter(), Counter({1: 1})),
        ((2, 5, 1), Counter({1: 1}), Counter({1: 1, 2: 1})),
        ((2, 3, 9, 8, 1), Counter({1: 1, 2: 2}), Counter({1: 1, 2: 2})),
    ],
    ids=["miss", "hit-then-miss", "all"],
)
def test_the_text_tells_which_drafts_were_right(came: tuple[int, ...], hits: Counter, drafts: Counter) -> None:
    texts = Texts([1, 2, 3, 9, 1], [4, 4])
    lookup = Lookup(texts.slots, DRAFTER)
    lookup.propose(np.array([0]), GAMMA)
    texts.grow(0, *came)
    posterior(lookup, hits, drafts)


def test_a_block_longer_than_what_came_tells_of_what_came() -> None:
    texts = Texts([1, 2, 3, 9, 1])
    lookup = Lookup(texts.slots, DRAFTER)
    lookup.propose(np.array([0]), GAMMA)
    texts.grow(0, 2, 3)
    expected = HitRates(2)
    expected.add(np.array([1, 2]), np.array([True, True]))
    # The text ends in a match of two tokens, where its next block begins.
    found = lookup.propose(np.array([0]), GAMMA).confidence_logits[0, 0]
    np.testing.assert_allclose(found, expected.logits(np.array([2]))[0], rtol=1e-6)


def test_drafts_of_a_request_that_left_are_not_held_against_the_next() -> None:
    texts = Texts([1, 2, 3, 9, 1])
    lookup = Lookup(texts.slots, DRAFTER)
    lookup.propose(np.array([0]), GAMMA)
    texts.slots.leave(0)
    texts.arrive(0, [1, 2, 3, 9, 1, 5, 1])
    posterior(lookup, Counter(), Counter())


def test_preemption_loses_nothing() -> None:
    texts = Texts([1, 2, 3, 9, 1])
    lookup = Lookup(texts.slots, DRAFTER)
    lookup.propose(np.array([0]), GAMMA)
    texts.slots.preempt(0)
    texts.grow(0, 2, 5, 1)
    posterior(lookup, Counter({1: 1}), Counter({1: 1, 2: 1}))


def test_nothing_is_learned_where_nothing_may_be() -> None:
    texts = Texts([1, 2, 3, 9, 1])
    lookup = Lookup(texts.slots, DRAFTER, learns=False)
    lookup.propose(np.array([0]), GAMMA)
    texts.grow(0, 5, 1)
    posterior(lookup, Counter(), Counter())


@pytest.mark.parametrize("sizes", [{"block_size": 0}, {"longest_match": 2.0}], ids=["no-tokens", "half-tokens"])
def test_sizes_that_are_none_are_refused(sizes: dict) -> None:
    with pytest.raises(UsageError, match="n-gram drafter") as refused:
        NgramDrafter(**sizes)
    assert refused.value.remedy
