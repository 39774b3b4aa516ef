"""What the host sends to the device and gets back from it in a round, through pinned memory."""

from __future__ import annotations

import numpy as np
import torch

from dspark.engine.kv_pool import PagePool
from dspark.engine.slots import SlotTable
from dspark.kernels import RoundField

_SETTINGS = slice(RoundField.TEMPERATURE, None)


class RoundSender:
    """One copy a round: a row a request.

    The pinned memory is written again only after the round's verdict was waited for, which lies behind the copy.
    """

    def __init__(self, device_round: torch.Tensor) -> None:
        self._device = device_round  # [1 + S, fields] int64
        self._host = torch.zeros(device_round.shape, dtype=torch.int64, pin_memory=device_round.is_cuda)
        self._rows = self._host.numpy()
        self._settings_clean = True

    def send(
        self,
        slots: SlotTable,
        rows: np.ndarray,
        *,
        starts: np.ndarray,
        lengths: np.ndarray | int,
        sampled: bool,
        generations: np.ndarray | int,
    ) -> None:
        """Tell the device of slots `rows` [R], whose anchors lie at text positions `starts` [R].

        Without `sampled`, all are greedy and their settings are not looked at.
        """
        n = len(rows)
        self._rows[0, 0] = n
        body = self._rows[1 : n + 1]
        body[:, RoundField.SLOT] = rows
        body[:, RoundField.START] = starts
        body[:, RoundField.LENGTH] = lengths
        body[:, RoundField.ANCHOR] = slots.tokens[rows, starts]
        body[:, RoundField.GENERATION] = generations
        if sampled:
            body[:, RoundField.TEMPERATURE] = slots.temperature[rows].view(np.int32)
            body[:, RoundField.TOP_P] = slots.top_p[rows].view(np.int32)
            body[:, RoundField.TOP_K] = slots.top_k[rows]
            body[:, RoundField.SEED] = slots.seeds[rows]
            self._settings_clean = False
        elif not self._settings_clean:
            self._rows[:, _SETTINGS] = 0
            self._settings_clean = True
        self._device[: n + 1].copy_(self._host[: n + 1], non_blocking=True)


class ResultReceiver:
    """Brings a round's result to the host and waits for it."""

    def __init__(self, device_result: torch.Tensor) -> None:
        self._device = device_result  # [S, 2 + steps] int64
        self._host = torch.zeros(device_result.shape, dtype=torch.int64, pin_memory=device_result.is_cuda)
        self._rows = self._host.numpy()
        self._event = torch.cuda.Event() if device_result.is_cuda else None

    def receive(self, num_requests: int) -> np.ndarray:
        """The result's first rows, valid until the next call."""
        self._host[:num_requests].copy_(self._device[:num_requests], non_blocking=True)
        if self._event is not None:
            self._event.record()
            self._event.synchronize()
        return self._rows[:num_requests]


class TableMirror:
    """Keeps the device's block tables equal to the pool's, entry by entry as pages are handed out."""

    def __init__(self, pool: PagePool, device_tables: torch.Tensor) -> None:
        self._pool = pool
        self._device = device_tables.view(-1)  # [S * M]
        pool.handed_out = []

    def update(self) -> None:
        """Send the entries that changed since the last call. Entries of released pages are left: nobody reads them."""
        changes = self._pool.handed_out
        if not changes:
            return
        entries = np.concatenate(changes)
        changes.clear()
        # The pool's present pages: an entry that changed twice is then sent twice with the same value.
        pair = torch.from_numpy(np.stack([entries, self._pool.tables.reshape(-1)[entries].astype(np.int64)]))
        if self._device.is_cuda:
            pair = pair.pin_memory().to(self._device.device, non_blocking=True)
        self._device.scatter_(0, pair[0], pair[1])
