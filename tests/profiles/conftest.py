"""Profiles of made-up measurements."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from profile_samples import make_profile

from dspark.profiles import Profile


@pytest.fixture
def profile() -> Profile:
    return make_profile()


@pytest.fixture
def another_profile() -> Callable[..., Profile]:
    """Makes a profile with other noise, speed or conditions."""
    return make_profile
