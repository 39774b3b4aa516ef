"""Replayed throughput, against the arithmetic of a block that always ends the same way."""

from __future__ import annotations

import numpy as np
import pytest
from profile_samples import CONTEXT, GAMMA, make_profile
from report_samples import make_rounds

from dspark.engine.report.frontier import (
    ReplaySetting,
    _parts,
    concurrency_steps,
    policies_for,
    policy_frontier,
    replay_parts,
    replayed,
)

ONES = np.ones(GAMMA)
PROFILE = make_profile()
ACCEPTED = 2


@pytest.fixture(scope="module")
def constant(quick_replay):
    traces = make_rounds(20, accepted=np.full(20, ACCEPTED), confidence_logits=np.zeros((20, GAMMA)))
    return policy_frontier(traces, PROFILE, ONES, seed=0)


def round_s(requests, tokens, *, drafts=True):
    return float(
        PROFILE.curve.round_time_s(
            tokens,
            num_requests=requests,
            kv_tokens=requests * CONTEXT + tokens,
            longest_context=CONTEXT + 1 + GAMMA,
            drafts=drafts,
        )
    )


@pytest.mark.parametrize("length", [0, 1, 3, 7])
def test_fixed_lengths_emit_what_is_accepted_in_the_time_of_their_bucket(constant, length):
    line = constant.line(f"fixed:{length}" if length else "none")
    for i, requests in enumerate(constant.concurrency):
        time_s = round_s(requests, requests * (1 + length), drafts=length > 0)
        expected = requests * (1 + min(length, ACCEPTED)) / time_s
        assert line.tokens_per_s[i] == pytest.approx(expected)
        assert line.tokens_per_s_per_user[i] == pytest.approx(expected / requests)
        assert line.verified_per_request[i] == length


def test_the_bound_is_the_best_budget_for_a_known_outcome(constant):
    for i, requests in enumerate(constant.concurrency):
        passing = requests * ACCEPTED
        drafted = [(requests + min(m, passing)) / round_s(requests, requests + m) for m in range(requests * GAMMA + 1)]
        best = max(*drafted, requests / round_s(requests, requests, drafts=False))
        assert constant.line("oracle").tokens_per_s[i] == pytest.approx(best)


def test_repeats_rest_on_different_requests_if_there_are_enough():
    request = np.arange(160) // 10
    shares = _parts(request, 0)
    assert [np.unique(request[rows]).size for rows in shares] == [4] * 4
    assert (sum(rows.astype(int) for rows in shares) == 1).all()
    assert all(rows.all() for rows in _parts(request[:150], 0))


def test_the_spread_of_repeats_covers_the_choice_of_requests():
    """Requests that differ and blocks that do not: all of the error is in which requests were recorded."""
    covered = 0
    for seed in range(20):
        rng = np.random.default_rng(seed)
        accepted = np.repeat(rng.integers(0, 2, size=32), 10) * GAMMA
        traces = make_rounds(320, accepted=accepted)
        parts = replay_parts(traces, traces.confidence_logits, ONES, seed=seed)
        results = replayed(parts, "fixed:7", 1, ReplaySetting(PROFILE.curve, CONTEXT, False, seed))
        speeds = np.array([result.tokens_per_s for result in results])
        # Student's t with 3 degrees of freedom leaves 2.5 % beyond 3.1824.
        margin = 3.1824 * speeds.std(ddof=1) / 2
        # Half of all requests accept everything.
        covered += abs(speeds.mean() - (1 + GAMMA / 2) / round_s(1, 8)) <= margin
    # 95 % of 20, give or take: fewer than 15 has a chance of 1 in 3,000.
    assert covered >= 15


def test_equal_seeds_give_equal_numbers_and_others_do_not():
    traces = make_rounds(200)
    one, same, other = (policy_frontier(traces, PROFILE, ONES, seed=seed) for seed in (2, 2, 3))
    assert one.lines == same.lines
    assert one.lines != other.lines


def test_concurrency_goes_to_what_the_profile_covers():
    # 32 packed tokens hold four blocks of 1 + 7; drafting and verification were profiled for four requests as well.
    assert concurrency_steps(PROFILE.curve) == (1, 2, 4)


def test_contexts_are_the_recorded_ones():
    frontier = policy_frontier(make_rounds(20, text_position=np.arange(20)), PROFILE, ONES, seed=0)
    assert frontier.setting.context_tokens == 9
    assert policy_frontier(make_rounds(20), PROFILE, ONES, seed=0).setting.context_tokens == CONTEXT


@pytest.mark.parametrize(
    ("gamma", "fixed"), [(1, ["fixed:1"]), (2, ["fixed:1", "fixed:2"]), (7, ["fixed:1", "fixed:3", "fixed:7"])]
)
def test_fixed_lengths_fit_the_block(gamma, fixed):
    assert [policy for policy in policies_for(gamma) if policy.startswith("fixed")] == fixed


def test_nothing_to_replay():
    cut = make_rounds(20, accepted=np.zeros(20), verified=np.full(20, 3))
    assert policy_frontier(cut, PROFILE, ONES, seed=0) is None
