"""Under what a number was measured."""

from __future__ import annotations

import os
import platform
import sys
from importlib import metadata


def manifest() -> dict[str, str | int | None]:
    """Versions and machine, from what is installed; loads nothing."""
    return {
        "dspark": _version("dspark"),
        "torch": _version("torch"),
        "triton": _version("triton"),
        "transformers": _version("transformers"),
        "python": platform.python_version(),
        "platform": f"{sys.platform}-{platform.machine()}",
        "cpus": os.cpu_count(),
    }


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None
