"""Profiles of made-up measurements."""

from __future__ import annotations

import pytest
from profile_samples import make_profile

from dspark.profiles import Profile


@pytest.fixture
def profile() -> Profile:
    return make_profile()
