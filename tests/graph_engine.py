"""Engines whose rounds are graph replays: real ones on a GPU; on a CPU the same code, each replay a call of it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from fixture_engine import FIXTURES

from dspark.engine import Engine, EngineConfig
from dspark.engine.graphs import target_graphs
from dspark.engine.graphs.decode_graphs import DecodeGraphs
from dspark.kernels import Verdict, verify


def make_pair_engine(
    name: str, device: str, *, graphs: bool, policy: Any = "fixed:7", dtype: str = "float32", **config: Any
) -> Engine:
    """Over a fixture's pair."""
    folder = FIXTURES / name
    settings: dict[str, Any] = {"target": str(folder / "target"), "drafter": str(folder / "draft"), "page_size": 4}
    spelled = policy if isinstance(policy, str) else None
    engine = Engine(
        EngineConfig(device=device, dtype=dtype, policy=spelled, graphs=graphs, **(settings | config)),
        policy=None if isinstance(policy, str) else policy,
    )
    if graphs and device == "cpu":
        engine.graphs = DecodeGraphs(engine, engine.graph_sizes, drafter=engine.drafter)
    assert (engine.graphs is not None) == graphs
    return engine


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def graph_device(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Where graphs run. On a CPU verification gets its batch without padding, which its reference does not know."""
    if request.param == "cpu":
        monkeypatch.setattr(target_graphs, "verify", _verify_unpadded)
    return request.param


def _verify_unpadded(logits: torch.Tensor, *, rows: Any, lengths: torch.Tensor, **options: Any) -> Verdict:
    real = int((lengths >= 0).sum())
    starts = options.pop("query_starts")[: real + 1]
    for name in ("draft_tokens", "draft_logits", "positions", "generations"):
        options[name] = None if options[name] is None else options[name][:real]
    verdict = verify(
        logits[: int(starts[-1])],
        rows=rows.take(torch.arange(real)),
        lengths=lengths[:real],
        query_starts=starts,
        **options,
    )
    padding = lengths.shape[0] - real
    accepted, tokens = (torch.nn.functional.pad(t, (0, padding)) for t in (verdict.accepted, verdict.next_token))
    return Verdict(accepted=accepted, next_token=tokens)
