"""A quick replay, and one whole report that several files look at."""

from __future__ import annotations

import pytest
from report_samples import make_run

from dspark.engine.report import frontier
from dspark.engine.report.job import Report, make_report
from dspark.engine.report.run import load_runs


@pytest.fixture(scope="session", autouse=True)
def quick_replay():
    """Few blocks: what is tested holds for any number of them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(frontier, "_BLOCKS", 64)
        patch.setattr(frontier, "_FEWEST_ROUNDS", 16)
        yield


@pytest.fixture(scope="session")
def whole_report(tmp_path_factory, quick_replay) -> Report:
    folder = make_run(tmp_path_factory.mktemp("runs") / "<run> & co")
    return make_report(load_runs([folder]), seed=0)
