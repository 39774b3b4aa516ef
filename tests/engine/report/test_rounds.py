"""Which rounds tell how far a block would go, and which were held out."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from report_samples import make_rounds

from dspark.calibration import Provenance, calibrate, make_traces
from dspark.engine.report.rounds import full_blocks, replayable, sample_for


@pytest.mark.parametrize(
    ("drafted", "verified", "observed", "accepted", "tells"),
    [
        pytest.param(3, 3, 1, 0, True, id="rejected at once"),
        pytest.param(3, 3, 3, 2, True, id="rejected last"),
        pytest.param(3, 3, 3, 3, True, id="all accepted"),
        pytest.param(3, 3, 2, 2, False, id="a stop ended it"),
        pytest.param(3, 3, 0, 0, False, id="a stop before the first"),
        pytest.param(3, 2, 1, 0, False, id="cut short by a policy"),
        pytest.param(2, 2, 2, 1, False, id="fewer were drafted"),
        pytest.param(0, 0, 0, 0, False, id="nothing was drafted"),
    ],
)
def test_full_blocks_are_verified_whole_and_settled(drafted, verified, observed, accepted, tells):
    traces = make_traces(
        request=[0],
        drafted=[drafted],
        verified=[verified],
        observed=[observed],
        accepted=[accepted],
        confidence_logits=[[0.0, 0.0, 0.0]],
    )
    assert len(full_blocks(traces)) == tells


@pytest.mark.parametrize(("drafter", "told"), [("ngram", [0, 1, 3]), ("a-network", [0, 3])], ids=["ngram", "network"])
def test_rounds_for_which_a_drafter_had_nothing_are_replayed(drafter, told):
    """Its last round lacked one token, or was cut short: of such rounds nobody knows what a draft would have given."""
    drafted = np.array([3, 0, 3, 3, 0])
    traces = make_traces(
        request=[0, 0, 0, 1, 1],
        drafted=drafted,
        verified=[3, 0, 2, 3, 0],
        observed=[1, 0, 1, 3, 0],
        accepted=[0, 0, 0, 3, 0],
        text_position=np.arange(5),
        confidence_logits=np.where(drafted[:, None] > 0, np.zeros((5, 3)), np.nan),
        provenance=Provenance(drafter=drafter),
    )
    assert replayable(traces).text_position.tolist() == told


def test_the_held_out_rounds_are_those_of_the_calibration():
    traces = make_rounds(1000)
    calibration = calibrate(traces, holdout=0.4, seed=3)
    sample = sample_for(traces, calibration)
    assert sample.held_out
    # 100 requests of ten rounds; the verdict of the calibration is on these very rounds.
    assert len(sample.traces) == calibration.held_out.rounds == 400
    first = calibration.positions[0].metrics.survived
    assert (int((sample.traces.accepted >= 1).sum()), len(sample.traces)) == (first.successes, first.trials)


@pytest.mark.parametrize("other", ["none", "fingerprint", "seed", "no holdout"])
def test_all_rounds_serve_where_the_split_is_not_known(other):
    traces = make_rounds(1000)
    calibration = calibrate(traces, holdout=0.4)
    found = {
        "none": None,
        "fingerprint": calibrate(make_rounds(1000, seed=1)),
        "seed": replace(calibration, held_out=replace(calibration.held_out, rounds=390)),
        "no holdout": calibrate(traces, holdout=0),
    }[other]
    sample = sample_for(traces, found)
    assert not sample.held_out
    np.testing.assert_array_equal(sample.traces.request, traces.request)
