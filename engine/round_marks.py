"""Points in time of a round on the device, looked at when its result is there."""

from __future__ import annotations

import time

import torch

from dspark.engine.scheduler.round_time import PartTimes


class RoundMarks:
    """Where a round began, had its block drafted, had its target step done, and ended.

    On a GPU these are events, which cost the device nothing to wait for; what the host does elsewhere is the clock.
    """

    def __init__(self, device: torch.device) -> None:
        self._on_gpu = device.type == "cuda"
        self._marks: list[torch.cuda.Event | float] = []
        self.mark()

    def mark(self) -> None:
        """The next point is here."""
        if not self._on_gpu:
            self._marks.append(time.perf_counter())
            return
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        self._marks.append(event)

    def parts(self) -> PartTimes:
        """What lies between the four marks; the device has passed them all."""
        start, drafted, stepped, end = self._marks
        return PartTimes(
            draft_s=_seconds(start, drafted), target_s=_seconds(drafted, stepped), verify_s=_seconds(stepped, end)
        )

    def gap_s(self, later: RoundMarks) -> float:
        """From the end of this round to the start of a later one."""
        return max(_seconds(self._marks[-1], later._marks[0]), 0.0)


def _seconds(first: torch.cuda.Event | float, last: torch.cuda.Event | float) -> float:
    if isinstance(first, float) or isinstance(last, float):
        assert isinstance(first, float) and isinstance(last, float), "marks of one device"
        return last - first
    return first.elapsed_time(last) / 1e3
