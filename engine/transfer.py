"""Copies between host and device that nobody waits for, until the host needs what came back.

Pinned memory is taken anew for every copy: the allocator keeps it from being reused while a copy is under way, and
hands the same few blocks out round after round.
"""

from __future__ import annotations

import numpy as np
import torch


def upload(array: np.ndarray, device: torch.device) -> torch.Tensor:
    """The array on `device`, in the order of the work queued there."""
    tensor = torch.from_numpy(array)
    if device.type != "cuda":
        return tensor
    return tensor.pin_memory().to(device, non_blocking=True)


def upload_into(out: torch.Tensor, array: np.ndarray) -> None:
    """Write the array to `out`, of its shape, in the order of the work queued there."""
    tensor = torch.from_numpy(array)
    out.copy_(tensor.pin_memory() if out.is_cuda else tensor, non_blocking=True)


class Download:
    """Rows on their way to the host, as they are at this point of the device's work."""

    def __init__(self, device_rows: torch.Tensor) -> None:
        if device_rows.is_cuda:
            self._host = torch.empty(device_rows.shape, dtype=device_rows.dtype, pin_memory=True)
            self._host.copy_(device_rows, non_blocking=True)
            self._event: torch.cuda.Event | None = torch.cuda.Event()
            self._event.record()
        else:
            # Whoever made them may write there again.
            self._host, self._event = device_rows.clone(), None

    def wait(self) -> np.ndarray:
        """The rows, once they are there."""
        if self._event is not None:
            self._event.synchronize()
        return self._host.numpy()
