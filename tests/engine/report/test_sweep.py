"""The threshold sweep, against walking every block by hand and against the engine's policies."""

from __future__ import annotations

import math

import numpy as np
import pytest
from report_samples import make_rounds

from dspark.engine.report.sweep import threshold_sweeps
from dspark.engine.scheduler.policies import ScheduleView, parse_policy

GAMMA = 5
TEMPERATURES = np.array([0.5, 1.0, 1.5, 2.0, 3.0])


def walked(traces, threshold, *, by_position):
    """Verified and accepted tokens over all blocks, position by position."""
    verified = accepted = 0
    for logits, passed in zip(traces.confidence_logits, traces.accepted, strict=True):
        survival = 1.0
        for k in range(GAMMA):
            confidence = 1 / (1 + math.exp(-float(logits[k]) / TEMPERATURES[k]))
            survival *= confidence
            if (confidence if by_position else survival) < threshold:
                break
            verified += 1
            accepted += k < passed
    return verified, accepted


@pytest.mark.parametrize("policy", ["threshold", "threshold-position"])
def test_verified_and_accepted_are_what_a_walk_counts(policy):
    traces = make_rounds(60, GAMMA)
    sweep = next(s for s in threshold_sweeps(traces, TEMPERATURES) if s.policy == policy)
    for i in range(0, 101, 5):
        verified, accepted = walked(traces, i / 100, by_position=policy == "threshold-position")
        assert sweep.thresholds[i] == pytest.approx(i / 100)
        assert (sweep.verified[i] * 60, sweep.accepted[i] * 60) == pytest.approx((verified, accepted))
        assert sweep.acceptance_rate[i] == (pytest.approx(accepted / verified) if verified else None)
        assert sweep.rejected[i] == pytest.approx((verified - accepted) / 60)


@pytest.mark.parametrize("policy", ["threshold", "threshold-position"])
@pytest.mark.parametrize("percent", [1, 30, 77, 100])
def test_the_engine_verifies_as_much(policy, percent):
    traces = make_rounds(200, GAMMA)
    view = ScheduleView(np.full(200, GAMMA), traces.confidence_logits, TEMPERATURES)
    lengths = parse_policy(f"{policy}:{percent / 100}", GAMMA).lengths(view)
    sweep = next(s for s in threshold_sweeps(traces, TEMPERATURES) if s.policy == policy)
    assert sweep.verified[percent] * 200 == pytest.approx(lengths.sum())
    assert sweep.accepted[percent] * 200 == pytest.approx(np.minimum(lengths, traces.accepted).sum())


def test_blocks_that_do_not_tell_are_left_out():
    traces = make_rounds(50, GAMMA)
    cut = make_rounds(50, GAMMA, accepted=np.zeros(50), verified=np.full(50, 2))
    assert threshold_sweeps(cut, TEMPERATURES) == []
    assert threshold_sweeps(traces, TEMPERATURES)[0].verified[0] == GAMMA
