"""Ray for the tests of this folder."""

from __future__ import annotations

import os
from pathlib import Path

import pytest


@pytest.fixture(scope="module")
def ray_here():
    """One Ray for all tests of a module: it takes seconds to start."""
    ray = pytest.importorskip("ray", reason="needs Ray: pip install 'dspark[ray]'")
    # Workers import the helpers of these tests too.
    path = os.pathsep.join([str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", "")])
    ray.init(
        address="local",
        num_cpus=2,
        include_dashboard=False,
        log_to_driver=False,
        configure_logging=False,
        runtime_env={"env_vars": {"PYTHONPATH": path}},
    )
    yield
    ray.shutdown()
