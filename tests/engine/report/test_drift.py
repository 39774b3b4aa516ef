"""Drift between the halves of a trace, against all splits by enumeration."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
from report_samples import make_rounds

from dspark.calibration import make_traces
from dspark.engine.report.drift import drift

ONES = np.ones(7)


def test_halves_hold_whole_requests_in_the_order_of_recording():
    # Requests 9, 4, 2 and 7 with 1, 2, 1 and 2 rounds; 9 and 4 are interleaved.
    request = [4, 9, 4, 2, 7, 7]
    accepted = [1, 0, 2, 0, 2, 2]
    traces = make_traces(request=request, accepted=accepted, confidence_logits=np.zeros((6, 2)))
    found = drift(traces, np.ones(2), rng=np.random.default_rng(0))
    first, second = found.halves
    assert (first.rounds, first.requests, second.rounds, second.requests) == (3, 2, 3, 2)
    assert (first.mean_accepted, second.mean_accepted) == (pytest.approx(3 / 3), pytest.approx(4 / 3))
    # At logit 0 a block of two is expected to give 1/2 + 1/4.
    assert first.mean_expected == pytest.approx(0.75)
    assert [(p.successes, p.trials) for p in second.positions] == [(2, 3), (2, 2)]


def test_the_p_value_is_the_share_of_splits_that_differ_as_much():
    rng = np.random.default_rng(5)
    request = np.repeat(np.arange(8), 3)
    accepted = rng.integers(0, 8, size=24)
    traces = make_traces(request=request, accepted=accepted, confidence_logits=np.zeros((24, 7)))
    found = drift(traces, ONES, rng=np.random.default_rng(0))
    sums = accepted.reshape(8, 3).sum(axis=1)
    seen = abs(sums[4:].sum() - sums[:4].sum())
    splits = [abs(sums.sum() - 2 * sums[list(half)].sum()) for half in combinations(range(8), 4)]
    exact = np.mean([split >= seen for split in splits])
    # A share of 1,000 random splits, give or take four standard errors.
    assert found.p_value == pytest.approx(exact, abs=4 * np.sqrt(exact * (1 - exact) / 1000) + 0.001)


def test_a_planted_drift_is_found_and_a_steady_trace_has_none():
    late = np.arange(600) >= 300
    drifting = make_rounds(600, accepted=np.where(late, 1, 3))
    assert drift(drifting, ONES, rng=np.random.default_rng(0)).p_value < 0.01
    steady = make_rounds(600, accepted=np.arange(600) % 4)
    assert drift(steady, ONES, rng=np.random.default_rng(0)).p_value > 0.2


def test_one_request_cannot_be_told_from_itself():
    assert drift(make_rounds(20, request=np.zeros(20)), ONES, rng=np.random.default_rng(0)) is None


def test_a_half_without_full_blocks_has_no_difference():
    verified = np.where(np.arange(40) < 20, 7, 1)
    traces = make_rounds(40, accepted=np.zeros(40), verified=verified)
    found = drift(traces, ONES, rng=np.random.default_rng(0))
    assert (found.difference, found.p_value, found.halves[1].mean_accepted) == (None, None, None)
