"""Rounds of a run for which looking up does not pay: plain ones, with a plan now and then."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from fixture_engine import make_engine, say
from step_curves import step_curve
from torch import Tensor

from dspark.engine import Request, SamplingParams
from dspark.engine.ngram.lookup import Lookup
from dspark.engine.round_meter import RoundMetrics
from dspark.engine.scheduler.planner import RoundPlan, RoundPlanner
from dspark.engine.scheduler.policies import Planned
from dspark.engine.scheduler.round_time import RoundClock

GAMMA, REQUESTS = 7, 6
# As on a CPU: a token more takes several per cent more.
ROUND_S = 0.021
CURVE = step_curve((6, 12, 20, REQUESTS * (1 + GAMMA)), (ROUND_S, 0.024, 0.032, 0.058), gamma=GAMMA, draft_s=3e-4)


class WatchedRun:
    """Six requests whose text is a function of the position, decoded under `async`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, new_until: int, tokens: int) -> None:
        """No token is said twice up to position `new_until`; from there on the text is a cycle of five."""
        self.rounds: list[RoundMetrics] = []
        self.planned: list[int] = []  # rounds that each plan was told of, its own included
        self.look_ups = 0
        planner = RoundPlanner(RoundClock(CURVE, adapt=False), gamma=GAMMA, certain=True)
        plan, propose = planner.plan, Lookup.propose

        def planned(*args: Any, **kwargs: Any) -> RoundPlan:
            self.planned.append(kwargs["rounds"])
            return plan(*args, **kwargs)

        def proposed(*args: Any, **kwargs: Any) -> Any:
            self.look_ups += 1
            return propose(*args, **kwargs)

        monkeypatch.setattr(planner, "plan", planned)
        monkeypatch.setattr(Lookup, "propose", proposed)
        self.engine = engine = make_engine(
            drafter="ngram", concurrency=REQUESTS, policy=Planned(causal=False), planner=planner
        )

        def token_behind(positions: Tensor) -> Tensor:
            return torch.where(positions < new_until, positions + 101, positions % 5 + 3)

        say(engine.target, token_behind)
        engine.round_listener = self.rounds.append
        requests = [Request(i, [100], SamplingParams(max_tokens=tokens)) for i in range(REQUESTS)]
        texts = [completion.token_ids for completion in engine.generate(requests)]
        assert texts == [token_behind(torch.arange(tokens)).tolist()] * REQUESTS

    @property
    def verifying(self) -> list[int]:
        """Rounds that verified drafts."""
        return [i for i, told in enumerate(self.rounds) if told.batch_tokens > told.requests]


@pytest.fixture
def new_text(monkeypatch: pytest.MonkeyPatch) -> WatchedRun:
    return WatchedRun(monkeypatch, new_until=1000, tokens=150)


def test_a_text_that_repeats_nothing_is_seldom_looked_up_and_planned(new_text: WatchedRun) -> None:
    assert len(new_text.rounds) == 149 and not new_text.verifying
    rested = new_text.planned[-5:]
    assert max(rested) > 1
    # A round that drafts, one that plans a rest, and one more while that is kept, at the least.
    assert new_text.look_ups < len(new_text.planned) < 120


def test_the_planner_is_told_of_every_round(new_text: WatchedRun) -> None:
    assert len(new_text.rounds) - max(new_text.planned) < sum(new_text.planned) <= len(new_text.rounds)


def test_a_rest_is_kept_for_a_tenth_of_a_second_at_most(new_text: WatchedRun) -> None:
    assert (max(new_text.planned) - 1) * ROUND_S <= 0.1 < (max(new_text.planned) + 1) * ROUND_S


def test_a_rest_leaves_rounds_their_plan_and_nothing_to_draft(new_text: WatchedRun) -> None:
    assert all(told.expected_tokens == REQUESTS for told in new_text.rounds[-20:])
    assert new_text.engine.stats.spec.drafted == 0


def test_a_text_that_begins_to_repeat_itself_is_drafted_again(monkeypatch: pytest.MonkeyPatch) -> None:
    run = WatchedRun(monkeypatch, new_until=120, tokens=400)
    rounds_of_new_text = 120
    assert rounds_of_new_text < run.verifying[0] < rounds_of_new_text + 60
    # From then on rounds give several tokens a request; plain decoding would take 399.
    assert len(run.rounds) < 260
