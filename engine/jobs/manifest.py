"""Under what a number was measured."""

from __future__ import annotations

import contextlib
import os
import platform
import subprocess
import sys
from importlib import metadata
from pathlib import Path


def manifest(device: str) -> dict[str, str | int | None]:
    """Versions and machine of a run on `device` ("cpu" or "cuda")."""
    import torch

    cuda = device == "cuda"
    return {
        "dspark": package_version("dspark"),
        "git_revision": _git_revision(),
        "torch": package_version("torch"),
        "triton": package_version("triton"),
        "transformers": package_version("transformers"),
        "python": platform.python_version(),
        "platform": f"{sys.platform}-{platform.machine()}",
        "device_name": device_name(device),
        "cuda": torch.version.cuda if cuda else None,
        "driver": _read(Path("/sys/module/nvidia/version")) if cuda else None,
        "cpus": os.cpu_count(),
        "threads": torch.get_num_threads(),
    }


def device_name(device: str) -> str | None:
    """Model of the GPU ("cuda") or of the CPU ("cpu")."""
    import torch

    return torch.cuda.get_device_name() if device == "cuda" else _cpu_name()


def package_version(package: str) -> str | None:
    """The installed version; None if there is none."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _cpu_name() -> str | None:
    for line in (_read(Path("/proc/cpuinfo")) or "").splitlines():
        name, _, value = line.partition(":")
        if name.strip() == "model name":
            return value.strip()
    return platform.processor() or None


def _git_revision() -> str | None:
    """The commit that this code is of, `-dirty` if it was changed since; None for an installed copy."""
    folder = Path(__file__).parent
    # A copy inside somebody else's repository is not tracked there.
    if not _git(folder, "ls-files", Path(__file__).name):
        return None
    return _git(folder, "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*")


def _git(folder: Path, *arguments: str) -> str | None:
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        done = subprocess.run(["git", "-C", str(folder), *arguments], capture_output=True, text=True, timeout=10)
        return done.stdout.strip() or None
    return None


def _read(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip() or None
    except OSError:
        return None
