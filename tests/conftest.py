"""Fixtures that several folders share."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

# Decides how triton will be imported, so it comes before whatever imports triton.
import triton_mode  # noqa: F401
from tiny_models import TINY_MODELS, TinyModel, save_tiny_model

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# A shell that runs the tests in the background has them ignore Ctrl-C, and every command that they start.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def builtin_target() -> Path:
    """The folder of the real built-in target."""
    from builtin_model import delivered

    from dspark.engine.models import builtin

    return delivered(builtin.builtin_target)


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], TinyModel]:
    """Makes (once a session) the tiny model of a name in TINY_MODELS."""
    made: dict[str, TinyModel] = {}

    def make(name: str) -> TinyModel:
        if name not in made:
            made[name] = save_tiny_model(name, tmp_path_factory.mktemp(name))
        return made[name]

    return make


@pytest.fixture(params=list(TINY_MODELS))
def any_tiny_model(request: pytest.FixtureRequest, tiny_model: Callable[[str], TinyModel]) -> TinyModel:
    return tiny_model(request.param)


@pytest.fixture
def axes() -> Axes:
    """Those of an empty figure."""
    from matplotlib.figure import Figure

    return Figure().subplots()
