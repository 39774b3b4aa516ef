"""Rounds simulated with known truth."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from dspark.calibration import Traces, make_traces

Simulate = Callable[..., Traces]


@pytest.fixture(scope="session")
def simulate() -> Simulate:
    """rounds, temperatures [G] -> traces of a head whose logits are T_k times the true ones, N(1, 1.5^2)."""

    def run(rounds: int, temperatures: Sequence[float], *, seed: int = 0, **columns: Any) -> Traces:
        rng = np.random.default_rng(seed)
        true_logits = rng.normal(1.0, 1.5, size=(rounds, len(temperatures)))
        passed = rng.random(true_logits.shape) < 1 / (1 + np.exp(-true_logits))
        return make_traces(
            request=np.arange(rounds) // 20,
            accepted=np.cumprod(passed, axis=1).sum(axis=1),
            confidence_logits=true_logits * np.asarray(temperatures),
            **columns,
        )

    return run
