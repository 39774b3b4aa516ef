"""Replayed throughput, against the arithmetic of a block that always ends the same way."""

from __future__ import annotations

import numpy as np
import pytest
from profile_samples import CONTEXT, GAMMA, make_profile
from report_samples import make_rounds

from dspark.engine.report.frontier import concurrency_steps, policies_for, policy_frontier

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


def test_the_bound_is_the_best_number_of_tokens_known_to_pass(constant):
    for i, requests in enumerate(constant.concurrency):
        best = max((requests + m) / round_s(requests, requests + m) for m in range(requests * ACCEPTED + 1))
        assert constant.line("oracle").tokens_per_s[i] == pytest.approx(best)


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
