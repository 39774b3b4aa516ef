"""Near-ties are told apart from wrong tokens by what the batch's shape does to the logits."""

import numpy as np
import pytest

from dspark.engine.selftest.greedy import check_greedy
from dspark.engine.selftest.noise import logit_noise

VOCAB = 4


class Table:
    """A target whose logits behind token t are row t, plus `shape_noise` on token 3 where tokens come one by one."""

    rows = np.array([[0, 5, 1, 0], [0, 1, 5, 4.98], [9, 0, 0, 0], [0, 7, 0, 0]], dtype=np.float32)

    def __init__(self, shape_noise=0.0, shift=0.0):
        self.shape_noise, self.shift = shape_noise, shift

    def logits(self, tokens, *, step=None):
        found = self.rows[list(tokens)].copy()
        if step is not None:
            found += self.shift
            found[:, 3] += self.shape_noise
        return found

    def logits_behind(self, texts):
        return (self.rows[text[-1]] for text in texts)


def check(text, *, noise, reference=(1, 2, 0)):
    return check_greedy(Table(), [[0]], [list(text)], policy="fixed:3", noise=noise, reference=[list(reference)])


def test_the_same_text_passes():
    result = check((1, 2, 0), noise=0.0)
    assert result.passed and result.finding == "1 of 1 texts are those of plain decoding"


def test_a_near_tie_passes_and_is_told():
    result = check((1, 3, 1), noise=0.02)
    assert result.passed
    assert result.numbers["near_ties"] == [{"text": 0, "token": 1, "gap": pytest.approx(0.02, abs=1e-5)}]
    assert "text 0 at token 1 (top-2 gap 0.02)" in result.finding


@pytest.mark.parametrize(("text", "token", "gap"), [((1, 3, 1), 1, 0.02), ((2, 0, 1), 0, 4.0)], ids=["near", "far"])
def test_a_token_further_from_the_best_than_noise_explains_fails(text, token, gap):
    result = check(text, noise=0.001)
    assert not result.passed
    assert result.numbers["wrong"] == [{"text": 0, "token": token, "gap": pytest.approx(gap, abs=1e-5)}]
    assert f"token {token} of text 0" in result.finding


def test_a_text_that_breaks_off_is_not_the_same():
    result = check((1, 2), noise=0.0)
    assert not result.passed and result.finding == "texts of [2] tokens, and of [3] by plain decoding"


def test_noise_is_what_moves_logits_against_each_other():
    assert logit_noise(Table(), [[0]], [[1, 2]], step=2) == 0
    # All logits of a token moved alike decide nothing.
    assert logit_noise(Table(shift=3.0), [[0]], [[1, 2]], step=2) == 0
    assert logit_noise(Table(shape_noise=0.25), [[0]], [[1, 2]], step=2) == pytest.approx(0.25)
