"""Expected acceptance against every block that speculative sampling could commit."""

from itertools import product

import numpy as np
import pytest

from dspark.engine.training.acceptance import Acceptance, AcceptanceSums, greedy_sums, sampled_sums

VOCAB, GAMMA = 3, 3


def distributions(seed):
    """p and q of the token behind every text of up to GAMMA - 1 tokens."""
    draw = np.random.default_rng(seed)
    texts = [text for length in range(GAMMA) for text in product(range(VOCAB), repeat=length)]
    return {text: (draw.dirichlet(np.ones(VOCAB)), draw.dirichlet(np.ones(VOCAB))) for text in texts}


def exact_survival(behind):
    """Probability that drafts 1 … k all pass, for every k: a draft x is drawn from q and passes with min(1, p / q)."""
    survival = np.zeros(GAMMA)
    for text in product(range(VOCAB), repeat=GAMMA):
        chance = 1.0
        for k, token in enumerate(text):
            p, q = behind[text[:k]]
            chance *= min(p[token], q[token])
            # Each prefix stands for all blocks that begin with it.
            survival[k] += chance / VOCAB ** (GAMMA - 1 - k)
    return survival


@pytest.mark.parametrize("seed", range(3))
def test_sampled_texts_give_the_expectation_of_speculative_sampling(seed):
    behind = distributions(seed)
    blocks, chances = [], []
    for text in product(range(VOCAB), repeat=GAMMA):
        rows = [behind[text[:k]] for k in range(GAMMA)]
        chances.append(np.prod([p[token] for (p, _), token in zip(rows, text, strict=True)]))
        blocks.append(
            [(-np.log(q[t]), -np.log(p[t]), np.abs(q - p).sum()) for (p, q), t in zip(rows, text, strict=True)]
        )
    terms = np.array(blocks)  # [VOCAB^GAMMA, GAMMA, 3]
    weighted = AcceptanceSums.zero(GAMMA)
    # All texts, each as often as the target writes it.
    parts = [sampled_sums(*np.moveaxis(terms[i : i + 1], 2, 0)) for i in range(len(terms))]
    accepted = sum(chance * part.accepted for chance, part in zip(chances, parts, strict=True))
    survived = sum(chance * part.survived for chance, part in zip(chances, parts, strict=True))
    survival = exact_survival(behind)
    assert np.allclose(accepted, survival)
    assert np.allclose(survived, np.concatenate([[1], survival[:-1]]))
    assert weighted.length is None


def test_greedy_blocks_end_at_the_first_miss():
    sums = greedy_sums(np.array([[1, 1, 0], [0, 1, 1], [1, 1, 1], [1, 0, 1]], dtype=bool))
    assert sums.accepted.tolist() == [3, 2, 1]
    assert sums.survived.tolist() == [4, 3, 2]
    assert sums.conditional == pytest.approx((3 / 4, 2 / 3, 1 / 2))
    assert sums.length == 1 + 6 / 4
    assert (sums + sums).length == sums.length


def test_score_and_the_way_through_json():
    import json

    sampled = Acceptance(5, 2.5, (0.7, 0.8), 3.0, (0.9, 0.9), 0.4, None, 10, 20)
    greedy = Acceptance(6, None, (), 3.0, (0.9, 0.9), 0.4, 0.1, 0, 20)
    assert (sampled.score, greedy.score) == (2.5, 3.0)
    for acceptance in (sampled, greedy):
        assert Acceptance.from_dict(json.loads(json.dumps(acceptance.to_dict()))) == acceptance
