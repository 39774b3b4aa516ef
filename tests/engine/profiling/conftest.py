"""Fixtures that tests of profiling share."""

from __future__ import annotations

import pytest
from fixture_engine import make_engine

from dspark.engine import Engine


@pytest.fixture(scope="module")
def engine() -> Engine:
    """Of a tiny pair, for up to four requests."""
    return make_engine("dspark_rnn", concurrency=4)
