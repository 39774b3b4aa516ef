"""The verdict: on made-up throughputs, and on rounds whose trouble was planted."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from profile_samples import GAMMA, make_profile
from report_samples import make_rounds

from dspark.engine.report.frontier import Frontier, FrontierLine, ReplaySetting, policy_frontier
from dspark.engine.report.verdict import gains, judge, unscheduled
from dspark.profiles import Profile, StepCurve

ONES = np.ones(GAMMA)
PROFILE = make_profile()


def line(policy, *cells):
    """One policy; each cell holds the repeats at one concurrency."""
    means = tuple(float(np.mean(cell)) for cell in cells)
    steps = tuple(2**i for i in range(len(cells)))
    return FrontierLine(policy, steps, means, means, means, means, tuple(map(tuple, cells)))


def frontier(*lines):
    return Frontier(lines, 1, 1, ReplaySetting(PROFILE.curve, 256, False, 0), 4)


def steady(policy, *means):
    return line(policy, *([mean * 0.999, mean, mean, mean * 1.001] for mean in means))


def judged(async_means, *, oracle=(200.0, 200.0, 200.0), profile=PROFILE, requests=30):
    found = frontier(
        steady("none", 80, 100, 100),
        steady("fixed:7", 100, 90, 80),
        steady("async", *async_means),
        steady("oracle", *oracle),
    )
    return judge(replace(found, requests=requests), make_rounds(50), profile, ONES)


def test_gains_are_paired_ratios_to_the_best_other_with_a_t_interval():
    ahead, behind = line("async", [110.0, 121.0, 99.0, 110.0]), line("none", [90.0, 100.0, 90.0, 100.0])
    best = line("fixed:1", [100.0, 110.0, 100.0, 110.0])
    (gain,) = gains(frontier(behind, best, ahead), ahead, [behind, best])
    ratios = [0.1, 0.1, -0.01, 0.0]
    mean = sum(ratios) / 4
    deviation = math.sqrt(sum((r - mean) ** 2 for r in ratios) / 3)
    # Student's t with 3 degrees of freedom leaves 2.5 % beyond 3.1824.
    assert (gain.against, gain.gain) == ("fixed:1", pytest.approx(mean))
    assert gain.high - gain.gain == pytest.approx(3.1824 * deviation / 2, rel=1e-4)
    assert gain.gain - gain.low == pytest.approx(gain.high - gain.gain)
    assert not gain.pays


def test_unscheduled_policies_are_plain_decoding_and_fixed_lengths():
    lines = [steady(name, 1.0) for name in ("none", "fixed:1", "fixed:7", "threshold:0.5", "causal", "async")]
    assert [found.policy for found in unscheduled(frontier(*lines))] == ["none", "fixed:1", "fixed:7"]


@pytest.mark.parametrize(
    ("async_means", "pays_from", "words"),
    [
        ((110, 110, 110), 1, "pays on a CPU with this drafter, at every load: `async` gives 10.0% to 10.0% more"),
        ((100, 105, 120), 2, "from 2 requests at once on: `async` gives 5.0% to 20.0% more"),
        ((110, 100, 100), None, "but only at 1 request at once: `async` gives 10.0% more"),
        ((100, 100, 100), None, "does not pay on a CPU with this drafter: at no load up to 4 requests at once"),
        ((100, 90, 100.5), None, "It costs up to 10.0% at 2 requests at once."),
    ],
    ids=["everywhere", "from two on", "at one only", "nowhere", "costs"],
)
def test_the_answer_names_where_it_pays_and_what_it_costs(async_means, pays_from, words):
    verdict = judged(async_means)
    assert words in verdict.sentences[0]
    assert verdict.pays_from == pays_from
    assert verdict.pays == ("does not pay" not in verdict.sentences[0])


def test_a_gain_that_chance_may_hide_is_not_denied():
    plain = steady("none", 100)
    ahead = line("async", [95.0, 110.0, 99.0, 107.0])
    verdict = judge(frontier(plain, ahead, steady("oracle", 200)), make_rounds(50), PROFILE, ONES)
    assert not verdict.pays and "cannot be told from so few requests" in verdict.sentences[0]


def test_a_profile_that_is_not_to_be_trusted_is_said_first_and_makes_every_claim_conditional():
    unsteady = replace(PROFILE, manifest={"spread": 0.65})
    verdict = judged((110, 110, 110), profile=unsteady)
    first, *claims = verdict.sentences
    assert first == (
        "These times are not to be trusted: repeats differ by 65% (p20-p80). Measure again on a quiet machine, with "
        "more --repeats: `dspark profile`."
    )
    assert claims[0].startswith("If these times hold, scheduled verification pays on a CPU")
    assert len(claims) == 3 and all("f these times hold" in claim for claim in claims)
    assert verdict.doubts.unsteady is not None
    assert not judged((110, 110, 110)).doubts


@pytest.mark.parametrize(
    ("requests", "told"),
    [
        (1, "rests on 1 recorded request: other requests may well differ, and since every repeat draws from it, the"),
        (15, "rests on 15 recorded requests: other requests may well differ, and since every repeat draws from all"),
        (16, "rests on 16 recorded requests: other requests may well differ."),
        (29, "rests on 29 recorded requests: other requests may well differ."),
        (30, None),
    ],
    ids=str,
)
def test_few_requests_are_told(requests, told):
    sentences = judged((110, 110, 110), requests=requests).sentences
    assert len(sentences) == (3 if told is None else 4)
    assert told is None or told in sentences[-1]


def test_plain_decoding_is_compared_at_both_ends():
    assert (
        "1.25 times the tokens at 1 request at once and 1.10 times at 4 requests"
        in judged((100, 100, 110)).sentences[1]
    )


def test_a_scheduler_that_gets_what_the_oracle_gets_is_limited_by_nothing():
    assert judged((150, 150, 150), oracle=(150.5, 150, 150)).limit == "nothing"


def shaped(time_s: list[float]) -> Profile:
    """The sample profile with other target times, whatever the context, and drafting for next to nothing."""
    document = PROFILE.curve.to_dict()
    for name, values in (("target", time_s), ("draft", [1e-6] * 3)):
        stairs = document[name]
        zeros = [0.0] * len(values)
        stairs |= {"time_s": values, "p20_s": values, "p80_s": values, "load_s": zeros}
        if "longest_s" in stairs:
            stairs["longest_s"] = zeros
    curve = StepCurve.from_dict(document)
    return Profile(curve, PROFILE.conditions, (), {}, PROFILE.validation, (), PROFILE.manifest)


STEEP = shaped([0.05 + 0.01 * bucket for bucket in (1, 2, 4, 8, 16, 32)])
FLAT = shaped([0.1] * 6)


def limit_of(traces, profile):
    found = policy_frontier(traces, profile, ONES, seed=0)
    return judge(found, traces, profile, ONES).limit


def test_a_flat_curve_leaves_nothing_to_save():
    assert limit_of(make_rounds(400), FLAT) == "flat curve"


def test_a_drafter_that_is_never_right_leaves_nothing_to_choose():
    assert limit_of(make_rounds(400, accepted=np.zeros(400)), STEEP) == "drafter"


def test_confidences_that_are_far_too_sure_are_a_matter_of_calibration():
    traces = make_rounds(1500)
    # The order within a position is kept.
    shouting = make_rounds(1500, confidence_logits=traces.confidence_logits + 6)
    assert limit_of(shouting, STEEP) == "calibration"


def test_confidences_without_information_are_a_matter_of_the_head():
    traces = make_rounds(1500)
    chance = 1 / (1 + np.exp(-traces.confidence_logits))
    mute = make_rounds(1500, confidence_logits=np.full((1500, GAMMA), 0.4), signals={"oracle_acceptance": chance})
    assert limit_of(mute, STEEP) == "confidence head"


def test_perfect_confidences_leave_the_drafter():
    traces = make_rounds(1500)
    chance = 1 / (1 + np.exp(-traces.confidence_logits))
    known = make_rounds(1500, signals={"oracle_acceptance": chance})
    assert limit_of(known, STEEP) == "drafter"


def test_the_extra_cost_is_that_of_whole_blocks():
    verdict = judged((100, 100, 100))
    curve = PROFILE.curve
    for i, requests in enumerate((1, 2, 4)):
        times = [
            float(curve.round_time_s(n, num_requests=requests, kv_tokens=requests * 256 + n, longest_context=264))
            for n in (8 * requests, requests)
        ]
        assert verdict.extra_cost[i] == pytest.approx(times[0] / times[1] - 1)


def test_a_gain_that_noise_explains_is_not_told_as_the_largest():
    noisy = line("async", [110, 110, 110, 110.1], [120, 120, 120, 120.1], [60, 200, 100, 180])
    found = frontier(steady("none", 100, 100, 100), noisy, steady("oracle", 200, 200, 200))
    verdict = judge(found, make_rounds(50), PROFILE, ONES)
    assert verdict.pays_from is None
    assert "at 1 and 2 requests at once: `async` gives 10.0% to 20.0% more" in verdict.sentences[0]
    assert "most at 2 requests at once, +20.0%" in verdict.sentences[0]
