"""Scores of survival against pairs counted one by one, and which rounds they are of."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest
from fixture_engine import make_engine, requests
from sklearn.metrics import roc_auc_score
from survival_scores import recorded_rounds, survival_scores

from dspark.calibration import Traces, make_traces

GAMMA = 3


def made_up(num_requests: int, *, rounds: int = 40, seed: int = 0, **columns: Any) -> Traces:
    """Blocks accepted by a true chance, which the head sees through noise."""
    rng = np.random.default_rng(seed)
    chance = rng.uniform(0.2, 0.95, (num_requests * rounds, GAMMA))
    passed = rng.random(chance.shape) < chance
    values = {
        "request": np.repeat(np.arange(num_requests), rounds),
        "accepted": np.cumprod(passed, axis=1).sum(axis=1),
        "confidence_logits": np.log(chance / (1 - chance)) + rng.normal(size=chance.shape),
        "signals": {"oracle_acceptance": chance},
    }
    return make_traces(**(values | columns))


def counted_auc(label: list[bool], score: list[float]) -> float:
    """Of all pairs of one that survived and one that did not, the share in order; equal scores count half."""
    pairs = list(
        product(
            [s for s, survived in zip(score, label, strict=True) if survived],
            [s for s, survived in zip(score, label, strict=True) if not survived],
        )
    )
    return sum((good > bad) + 0.5 * (good == bad) for good, bad in pairs) / len(pairs)


def test_scores_are_of_products_and_leave_out_blocks_that_the_limit_cut() -> None:
    confidences = np.array([[0.9, 0.8, 0.7], [0.8, 0.9, 0.2], [0.5, 0.5, 0.9], [0.9, 0.1, 0.9], [0.3, 0.4, 0.5]])
    chances = np.array([[0.8, 0.8, 0.6], [0.7, 0.9, 0.4], [0.4, 0.9, 0.9], [0.9, 0.3, 0.8], [0.3, 0.2, 0.1]])
    accepted, verified = [3, 1, 2, 0, 0], [3, 3, 3, 3, 1]
    traces = make_traces(
        request=[0, 0, 1, 1, 2],
        accepted=accepted,
        verified=verified,
        confidence_logits=np.log(confidences / (1 - confidences)),
        signals={"oracle_acceptance": np.where(np.arange(GAMMA) < np.array(verified)[:, None], chances, np.nan)},
    )
    scores = survival_scores(traces, (1, 2, 3), rng=np.random.default_rng(0), resamples=20)
    for k, score in enumerate(scores, start=1):
        rounds = [i for i in range(5) if verified[i] >= k]
        label = [accepted[i] >= k for i in rounds]
        head, truth = (
            counted_auc(label, [float(np.prod(values[i, :k])) for i in rounds]) for values in (confidences, chances)
        )
        assert score.rounds == len(rounds)
        assert score.survived.value == pytest.approx(sum(label) / len(label))
        assert (score.head.value, score.truth.value) == pytest.approx((head, truth))
        assert score.ratio.value == pytest.approx(head / truth)


def test_intervals_are_of_whole_requests() -> None:
    """Two requests can only be drawn as they are, or one of them twice: a quarter of the draws each."""
    traces = made_up(2)
    (score,) = survival_scores(traces, (1,), rng=np.random.default_rng(0), resamples=400)
    alone = [
        roc_auc_score(traces.accepted[rows] >= 1, traces.signals["oracle_acceptance"][rows, 0].astype(np.float64))
        for rows in (traces.request == 0, traces.request == 1)
    ]
    assert (score.truth.low, score.truth.high) == pytest.approx((min(alone), max(alone)))


def test_requests_that_are_all_alike_leave_no_doubt() -> None:
    one = made_up(1)
    columns = {"accepted": np.tile(one.accepted, 5), "confidence_logits": np.tile(one.confidence_logits, (5, 1))}
    signals = {"oracle_acceptance": np.tile(one.signals["oracle_acceptance"], (5, 1))}
    traces = made_up(5, **columns, signals=signals)
    for score in survival_scores(traces, (1, 3), rng=np.random.default_rng(0), resamples=20):
        assert score.ratio.low == pytest.approx(score.ratio.value) == pytest.approx(score.ratio.high)


@pytest.mark.parametrize(("accepted", "share"), [(0, 0.0), (GAMMA, 1.0)], ids=["none survives", "all survive"])
def test_one_outcome_has_no_auc(accepted: int, share: float) -> None:
    traces = made_up(3, accepted=np.full(120, accepted))
    (score,) = survival_scores(traces, (2,), rng=np.random.default_rng(0), resamples=5)
    assert score.survived.value == share
    assert score.head is score.truth is score.ratio is None


def test_rounds_are_those_of_texts_that_stop() -> None:
    """The last round of one sees more: what lies behind its stop token."""
    asked, names = requests(temperature=1.0, ignore_eos=True), ["made up"] * 16
    # Ends many of the texts early, and some inside a block.
    stop_ids = frozenset(range(3, 23))
    told: dict[str, Traces] = {}
    for name, some in {"ignoring": asked, "stopping": requests(temperature=1.0)}.items():
        engine = make_engine()
        engine.stop_ids = stop_ids
        engine.stop_id_tensor = engine.stop_id_tensor.new_tensor(sorted(stop_ids))
        told[name] = recorded_rounds(engine, some, names)
    mine, oracle = told["ignoring"], told["stopping"]
    np.testing.assert_array_equal(mine.request, oracle.request)
    np.testing.assert_array_equal(mine.text_position, oracle.text_position)
    np.testing.assert_array_equal(mine.verified, oracle.verified)
    np.testing.assert_allclose(mine.confidence_logits, oracle.confidence_logits, rtol=0, atol=1e-4)
    assert (mine.accepted >= oracle.accepted).all()
    unknown = [(~oracle.survival_known_at(k)[0] & (oracle.verified >= k)).sum() for k in range(1, 8)]
    assert sum(unknown) > 0
    for k in range(1, 8):
        np.testing.assert_array_equal(mine.survival_known_at(k)[0], mine.verified >= k)
