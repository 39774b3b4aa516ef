"""The device that a profile is measured on: its name, its drivers, and what state it is in meanwhile."""

from __future__ import annotations

import platform
import subprocess
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

_GPU_QUERY = {
    "sm_clock_mhz": "clocks.sm",
    "memory_clock_mhz": "clocks.mem",
    "power_w": "power.draw",
    "temperature_c": "temperature.gpu",
    "throttle_reasons": "clocks_event_reasons.active",
}
# The name that the query had in older drivers.
_OLD_NAMES = {"clocks_event_reasons.active": "clocks_throttle_reasons.active"}
_QUERY_TIMEOUT_S = 10


def device_name(device: torch.device) -> str:
    """Model of the GPU, or of the CPU."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def device_manifest(device: torch.device) -> dict[str, Any]:
    """Drivers and versions, for the record."""
    document: dict[str, Any] = {
        "device": device_name(device),
        "device_type": device.type,
        "torch_threads": torch.get_num_threads() if device.type == "cpu" else None,
        "cuda": torch.version.cuda if device.type == "cuda" else None,
        "driver": _query(device, ["driver_version"])[0] if device.type == "cuda" else None,
        "git_revision": _git_revision(),
    }
    if device.type == "cuda":
        properties = torch.cuda.get_device_properties(device)
        document["device_memory_bytes"] = properties.total_memory
        document["multiprocessors"] = properties.multi_processor_count
    return document


def device_state(device: torch.device) -> dict[str, Any]:
    """Clocks, power, temperature and throttle reasons at this moment; nothing on a CPU. Changes no setting."""
    if device.type != "cuda":
        return {}
    values = _query(device, list(_GPU_QUERY.values()))
    if all(value is None for value in values):
        values = _query(device, [_OLD_NAMES.get(name, name) for name in _GPU_QUERY.values()])
    return {key: _number(value) for key, value in zip(_GPU_QUERY, values, strict=True)}


def _query(device: torch.device, names: list[str]) -> list[str | None]:
    """Answers of nvidia-smi; None where it has none."""
    uuid = getattr(torch.cuda.get_device_properties(device), "uuid", None)
    # By uuid: the numbers that torch counts by need not be the driver's.
    chosen = ["-i", f"GPU-{uuid}"] if uuid is not None else []
    command = ["nvidia-smi", *chosen, f"--query-gpu={','.join(names)}", "--format=csv,noheader,nounits"]
    with suppress(OSError, subprocess.SubprocessError):
        done = subprocess.run(command, capture_output=True, text=True, timeout=_QUERY_TIMEOUT_S, check=True)
        answers = [answer.strip() for answer in done.stdout.splitlines()[0].split(",")] if done.stdout else []
        if len(answers) == len(names):
            return [None if not answer or answer.startswith("[") else answer for answer in answers]
    return [None] * len(names)


def _number(value: str | None) -> float | str | None:
    if value is not None:
        with suppress(ValueError):
            return float(value)
    return value


def _git_revision() -> str | None:
    """Of the checkout that this package runs from; None if it is an installed one."""
    folder = Path(__file__).resolve().parents[2]
    if not (folder / ".git").exists():
        return None
    with suppress(OSError, subprocess.SubprocessError):
        command = ["git", "-C", str(folder), "describe", "--always", "--dirty", "--abbrev=12"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=_QUERY_TIMEOUT_S, check=True)
        return done.stdout.strip() or None
    return None
