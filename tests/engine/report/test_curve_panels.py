"""What stands below the figures of the replay."""

from __future__ import annotations

import numpy as np
import pytest
from profile_samples import GAMMA, make_profile
from report_samples import make_rounds

from dspark.engine.report.curve_panels import frontier_panels
from dspark.engine.report.frontier import Frontier, FrontierLine, ReplaySetting
from dspark.engine.report.rounds import sample_for
from dspark.engine.report.verdict import judge

PROFILE = make_profile()


def line(policy, speed, verified):
    return FrontierLine(policy, (1, 2), speed, speed, verified, (1.0, 1.0), tuple((s, s, s, s) for s in speed))


def methods(*, causal, verified, requests=30):
    lines = (
        line("none", (80.0, 100.0), (0.0, 0.0)),
        line("causal", causal, verified),
        line("async", (100.0, 200.0), (3.0, 2.0)),
        line("oracle", (150.0, 300.0), (2.0, 1.0)),
    )
    frontier = Frontier(lines, requests, 50, ReplaySetting(PROFILE.curve, 256, False, 0), 4)
    traces = make_rounds(50)
    verdict = judge(frontier, traces, PROFILE, np.ones(GAMMA))
    panels = frontier_panels(frontier, verdict, sample_for(traces, None), calibrated=False)
    return {panel.name: panel.method for panel in panels}


@pytest.mark.parametrize(
    ("causal", "verified", "hidden"),
    [
        ((100.1, 199.9), (3.0, 2.0), ["policy_frontier", "verification_budget"]),
        ((100.1, 199.9), (2.5, 2.0), ["policy_frontier"]),
        ((100.0, 210.0), (3.0, 2.5), []),
    ],
    ids=["both", "one", "none"],
)
def test_a_line_that_lies_on_async_is_told(causal, verified, hidden):
    found = methods(causal=causal, verified=verified)
    assert [name for name, method in found.items() if "`causal` lies on `async` throughout." in method] == hidden


@pytest.mark.parametrize(
    ("requests", "told"),
    [
        (16, "come from 4 repeats, each on requests of its own."),
        (15, "come from 4 repeats, on the same requests, too few to share out, and hold for these requests alone."),
    ],
    ids=str,
)
def test_what_intervals_come_from_is_told(requests, told):
    assert told in methods(causal=(1.0, 1.0), verified=(0.0, 0.0), requests=requests)["policy_frontier"]
