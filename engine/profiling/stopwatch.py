"""Times a call by the wall clock and, where there are events, by the device's own."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

import torch

_Result = TypeVar("_Result")


@dataclass(frozen=True, slots=True)
class Timed(Generic[_Result]):
    """What a call gave, and how long it took."""

    result: _Result
    wall_s: float  # until the device was done
    device_s: float | None


def timed(call: Callable[[], _Result], device: torch.device) -> Timed[_Result]:
    """Run `call` on an idle device and wait for it."""
    if device.type != "cuda":
        start_s = time.perf_counter()
        result = call()
        return Timed(result, time.perf_counter() - start_s, None)
    before, after = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize(device)
    start_s = time.perf_counter()
    before.record()
    result = call()
    after.record()
    torch.cuda.synchronize(device)
    return Timed(result, time.perf_counter() - start_s, before.elapsed_time(after) / 1e3)
