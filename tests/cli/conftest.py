"""Fixtures that tests of several commands share."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder, which commands run in."""
    monkeypatch.chdir(tmp_path)
    return tmp_path
