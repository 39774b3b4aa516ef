"""The confidence audit, against counting pairs and bins by hand."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from report_samples import make_rounds

from dspark.engine.report.audit import audit

GAMMA = 3


def counted_auc(values, labels):
    """Share of (accepted, rejected) pairs in the right order, ties half."""
    pairs = list(product(values[labels], values[~labels]))
    return np.mean([(a > b) + 0.5 * (a == b) for a, b in pairs]) if pairs else None


def counted_ece(values, labels):
    """Twenty bins, floor(20 p), the last closed."""
    bins = np.minimum(np.floor(values * 20), 19)
    gaps = [abs(values[bins == b].sum() - labels[bins == b].sum()) for b in range(20)]
    return sum(gaps) / len(values)


def scores(traces, temperatures=None):
    return {s.name: s for s in audit(traces, temperatures, rng=np.random.default_rng(0))}


def test_head_and_free_signals_are_scored_on_the_rounds_that_reached_a_position():
    rng = np.random.default_rng(1)
    signals = {"draft_max_probability": rng.random((120, GAMMA)), "oracle_acceptance": rng.random((120, GAMMA))}
    traces = make_rounds(120, GAMMA, signals=signals)
    temperatures = np.array([0.5, 2.0, 3.0])
    found = scores(traces, temperatures)
    assert list(found) == ["head", "head_calibrated", "draft_max_probability", "oracle_acceptance"]
    logits = traces.confidence_logits.astype(np.float64)
    values = {
        "head": 1 / (1 + np.exp(-logits)),
        "head_calibrated": 1 / (1 + np.exp(-logits / temperatures)),
        "draft_max_probability": traces.signals["draft_max_probability"].astype(np.float64),
        "oracle_acceptance": traces.signals["oracle_acceptance"].astype(np.float64),
    }
    for name, by_round in values.items():
        pooled_values, pooled_labels = [], []
        for k in range(GAMMA):
            reached = traces.accepted >= k
            labels = traces.accepted[reached] > k
            score = found[name].positions[k]
            assert (score.rounds, score.accepted) == (reached.sum(), labels.sum())
            assert score.auc == pytest.approx(counted_auc(by_round[reached, k], labels))
            assert score.ece == pytest.approx(counted_ece(by_round[reached, k], labels))
            pooled_values.append(by_round[reached, k])
            pooled_labels.append(labels)
        everything = np.concatenate(pooled_values), np.concatenate(pooled_labels)
        assert found[name].pooled_auc == pytest.approx(counted_auc(*everything))
        assert found[name].pooled_ece == pytest.approx(counted_ece(*everything))


def test_drafts_without_a_signal_are_left_out_for_all():
    signal = np.full((40, GAMMA), 0.5)
    signal[:30] = np.nan
    traces = make_rounds(40, GAMMA, signals={"draft_margin": signal})
    found = scores(traces)
    assert {name: s.positions[0].rounds for name, s in found.items()} == {"head": 10, "draft_margin": 10}


def test_a_signal_that_nobody_recorded_is_no_signal():
    traces = make_rounds(40, GAMMA, signals={"draft_margin": np.full((40, GAMMA), np.nan)})
    found = scores(traces)
    assert list(found) == ["head"]
    assert found["head"].positions[0].rounds == 40


@pytest.mark.parametrize("accepted", [0, GAMMA], ids=["none accepted", "all accepted"])
def test_one_outcome_alone_has_no_auc(accepted):
    found = scores(make_rounds(30, GAMMA, accepted=np.full(30, accepted)))
    assert found["head"].pooled_auc is None
    assert found["head"].positions[0].ece is not None
