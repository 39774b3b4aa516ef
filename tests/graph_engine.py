"""Engines whose rounds are graph replays: real ones on a GPU; on a CPU the same code, each replay a call of it."""

from __future__ import annotations

from typing import Any

import pytest
from fixture_engine import FIXTURES

from dspark.engine import Engine, EngineConfig
from dspark.engine.graphs.decode_graphs import DecodeGraphs


def make_pair_engine(
    name: str,
    device: str,
    *,
    graphs: bool,
    policy: Any = "fixed:7",
    planner: Any = None,
    detokenizer: Any = None,
    dtype: str = "float32",
    **config: Any,
) -> Engine:
    """Over a fixture's pair."""
    folder = FIXTURES / name
    settings: dict[str, Any] = {"target": str(folder / "target"), "drafter": str(folder / "draft"), "page_size": 4}
    spelled = policy if isinstance(policy, str) else None
    engine = Engine(
        EngineConfig(device=device, dtype=dtype, policy=spelled, graphs=graphs, **(settings | config)),
        policy=None if isinstance(policy, str) else policy,
        planner=planner,
        detokenizer=detokenizer,
    )
    if graphs and device == "cpu":
        engine.graphs = DecodeGraphs(engine, engine.graph_sizes, drafter=engine.drafter)
    assert (engine.graphs is not None) == graphs
    return engine


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def graph_device(request: pytest.FixtureRequest) -> str:
    """Where graphs run."""
    return request.param
