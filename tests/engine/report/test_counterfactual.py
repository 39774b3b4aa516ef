"""Confidences that the drafter could have given."""

from __future__ import annotations

import numpy as np
import pytest
from report_samples import make_rounds

from dspark.calibration import ece_null, expected_calibration_error, survival
from dspark.engine.report.counterfactual import recalibrated_logits, true_logits

GAMMA = 3


def test_free_recalibration_undoes_a_distortion_that_temperatures_cannot():
    traces = make_rounds(8000, GAMMA)
    distorted = make_rounds(8000, GAMMA, confidence_logits=3 * traces.confidence_logits + 2)
    before = survival(distorted.confidence_logits, np.ones(GAMMA))
    after = survival(recalibrated_logits(distorted, np.ones(GAMMA)), np.ones(GAMMA))
    for k in range(GAMMA):
        labels = traces.accepted > k
        assert expected_calibration_error(before[:, k], labels) > 0.1
        # What perfectly calibrated numbers show at this size, and a little for what the other half could not tell.
        null = ece_null(after[:, k], rng=np.random.default_rng(0))
        assert expected_calibration_error(after[:, k], labels) < null.high + 0.01
    assert (np.diff(after, axis=1) <= 0).all()


def test_confidences_without_information_become_the_rate_of_the_other_half():
    # Even requests accept 2 of 4 blocks, odd ones 1 of 4.
    accepted = np.tile([1, 1, 0, 0, 1, 0, 0, 0], 5)
    traces = make_rounds(40, 1, request=np.arange(40) // 4, accepted=accepted, confidence_logits=np.zeros((40, 1)))
    found = survival(recalibrated_logits(traces, np.ones(1)), np.ones(1))[:, 0]
    even = np.arange(40) // 4 % 2 == 0
    np.testing.assert_allclose(found[even], 0.25)
    np.testing.assert_allclose(found[~even], 0.5)


@pytest.mark.parametrize("rounds", [1, 2, 5])
def test_few_blocks_of_one_request_still_give_finite_logits(rounds):
    traces = make_rounds(rounds, GAMMA, request=np.zeros(rounds))
    assert np.isfinite(recalibrated_logits(traces, np.ones(GAMMA))).all()


def test_true_chances_are_their_own_logits_where_all_are_recorded():
    chance = np.array([[0.25, 0.0, 1.0]], dtype=np.float32)
    traces = make_rounds(1, GAMMA, signals={"oracle_acceptance": chance})
    np.testing.assert_allclose(1 / (1 + np.exp(-true_logits(traces))), chance, atol=2e-6)
    gap = make_rounds(1, GAMMA, signals={"oracle_acceptance": [[0.25, np.nan, 1.0]]})
    assert true_logits(gap) is None
    assert true_logits(make_rounds(1, GAMMA)) is None
