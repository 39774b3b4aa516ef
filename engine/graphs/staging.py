"""What the host tells the device before a round: a row a request, and the pages it was given."""

from __future__ import annotations

import numpy as np
import torch

from dspark.engine.kv_pool import PagePool
from dspark.engine.orders import RoundOrder
from dspark.engine.slots import SlotTable
from dspark.engine.transfer import upload, upload_into
from dspark.kernels import RoundField


def send_round(
    device_round: torch.Tensor,
    slots: SlotTable,
    rows: np.ndarray,
    *,
    order: RoundOrder,
    sampled: bool,
    generations: np.ndarray | int,
) -> None:
    """Write slots `rows` [R] and what is asked for them into device_round [1 + S, fields] int64.

    Without `sampled`, all are greedy and their settings are not looked at.
    """
    n = len(rows)
    host = np.zeros((1 + n, len(RoundField)), dtype=np.int64)
    host[0, :2] = n, order.budget or 0
    body = host[1:]
    body[:, RoundField.SLOT] = rows
    body[:, RoundField.LENGTH] = order.lengths
    body[:, RoundField.GENERATION] = generations
    if sampled:
        body[:, RoundField.TEMPERATURE] = slots.temperature[rows].view(np.int32)
        body[:, RoundField.TOP_P] = slots.top_p[rows].view(np.int32)
        body[:, RoundField.TOP_K] = slots.top_k[rows]
        body[:, RoundField.SEED] = slots.seeds[rows]
    upload_into(device_round[: n + 1], host)


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
        pages = self._pool.tables.reshape(-1)[entries].astype(np.int64)
        pair = upload(np.stack([entries, pages]), self._device.device)
        self._device.scatter_(0, pair[0], pair[1])
