"""Rounds on a GPU wait for nothing but the results of rounds before."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from fixture_engine import prompts
from graph_engine import make_pair_engine
from step_curves import make_planner

from dspark.engine import Engine, EngineConfig, Request, SamplingParams
from dspark.engine.scheduler.policies import Planned

pytestmark = pytest.mark.gpu
CONCURRENCY, GAMMA, ROUNDS = 8, 7, 200


@pytest.fixture
def waiting_is_an_error() -> Iterator[None]:
    mode = torch.cuda.get_sync_debug_mode()
    yield
    torch.cuda.set_sync_debug_mode(mode)


def make_engine(policy: str) -> Engine:
    if policy != "async":
        return make_pair_engine("dspark_rnn", "cuda", graphs=True, policy=policy, concurrency=CONCURRENCY)
    pair = make_pair_engine("dspark_rnn", "cuda", graphs=True, concurrency=CONCURRENCY).config
    most = CONCURRENCY * (1 + GAMMA)
    curve = ((CONCURRENCY, 24, most), (0.010, 0.013, 0.024))
    config = EngineConfig(
        target=pair.target, drafter=pair.drafter, device="cuda", dtype="float32", concurrency=CONCURRENCY, page_size=4
    )
    return Engine(config, policy=Planned(causal=False), planner=make_planner(*curve, gamma=GAMMA))


@pytest.mark.parametrize("settings", [{}, {"temperature": 0.8}, {"temperature": 0.8, "top_k": 9}], ids=str)
@pytest.mark.parametrize("policy", ["none", "fixed:7", "async"])
def test_no_round_synchronises(waiting_is_an_error: None, policy: str, settings: dict[str, Any]) -> None:
    engine = make_engine(policy)
    sampling = SamplingParams(max_tokens=180, ignore_eos=True, **settings)

    def asked() -> Iterator[Request]:
        index = 0
        while engine.stats.rounds < ROUNDS:
            yield Request(index, prompts()[index % 16], sampling)
            index += 1

    def run() -> None:
        for completion in engine.generate(asked()):
            assert completion.error is None and len(completion.token_ids) == 180

    # The first run captures what it needs; arrivals and departures go on in the second.
    run()
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    run()
    assert engine.stats.rounds >= ROUNDS
