"""What state a GPU is in while a profile is measured on it."""

from __future__ import annotations

import subprocess
from contextlib import suppress
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
