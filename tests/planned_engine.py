"""Engines over a fixture's pair whose rounds are planned by a step curve of two shelves, and what they order."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from graph_engine import make_pair_engine
from step_curves import make_planner

from dspark.engine import Engine
from dspark.engine.scheduler.planner import RoundPlanner
from dspark.engine.scheduler.policies import Planned
from dspark.engine.scheduling import AsyncScheduler

GAMMA, CONCURRENCY = 7, 6
MOST = CONCURRENCY * (1 + GAMMA)
# Two shelves with a cliff between them: what is worth verifying changes from round to round.
CURVE = ((6, 20, MOST), (0.010, 0.013, 0.024))
DEPTHS = pytest.mark.parametrize("depth", [0, 1], ids=["one-by-one", "overlapped"])


def planned_engine(
    *,
    causal: bool,
    depth: int,
    device: str = "cpu",
    graphs: bool = False,
    draft_s: float = 1e-3,
    planner: RoundPlanner | None = None,
    **options: Any,
) -> Engine:
    """`options`: of `EngineConfig`, and a detokenizer."""
    return make_pair_engine(
        "dspark_rnn",
        device,
        graphs=graphs,
        policy=Planned(causal=causal),
        planner=planner or make_planner(*CURVE, gamma=GAMMA, causal=causal, draft_s=draft_s),
        **{"concurrency": CONCURRENCY, "pipeline_depth": depth} | options,
    )


def watched_orders(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Orders of `async`, as they are given."""
    orders: list[Any] = []
    own = AsyncScheduler.order

    def order(scheduler: AsyncScheduler, rows: np.ndarray) -> Any:
        orders.append(own(scheduler, rows))
        return orders[-1]

    monkeypatch.setattr(AsyncScheduler, "order", order)
    return orders
