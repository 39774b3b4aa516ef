"""Step curves that were measured on known devices and come with the package."""

from __future__ import annotations

import importlib.resources
import os
from pathlib import Path

from dspark.profiles.errors import ProfileError
from dspark.profiles.profile import Profile, load_profile


def shipped_profiles() -> dict[str, Path]:
    """Name -> file, such as `h200-smollm2-135m`."""
    folder = Path(str(importlib.resources.files("dspark.profiles").joinpath("measured")))
    return {path.stem: path for path in sorted(folder.glob("*.json"))}


def find_profile(name: str) -> Profile:
    """The profile in a file, or the shipped one of that name.

    Raises:
        ProfileError: there is neither, or the file is no profile.
    """
    path, shipped = Path(name), shipped_profiles()
    if not os.path.lexists(path) and name in shipped:
        path = shipped[name]
    if not os.path.lexists(path):
        raise ProfileError(
            f"{name} is neither a file nor one of the shipped profiles",
            f"Run `dspark profile`, or use one of: {', '.join(shipped)}.",
        )
    return load_profile(path)
