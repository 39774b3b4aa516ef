"""What goes to the device in a round."""

from __future__ import annotations

import numpy as np
import torch

from dspark.engine import Request, SamplingParams
from dspark.engine.graphs.staging import TableMirror, send_round
from dspark.engine.kv_pool import PagePool
from dspark.engine.orders import RoundOrder
from dspark.engine.slots import SlotTable
from dspark.kernels import RoundField

SLOTS = 5


def slot_table() -> SlotTable:
    slots = SlotTable(SLOTS, max_context=40, gamma=3)
    for slot in range(SLOTS):
        sampling = SamplingParams(temperature=0.5 * slot, top_k=slot, top_p=1 - slot / 10)
        slots.arrive(slot, Request(slot, [slot + 3] * 6, sampling), seed=2**40 + slot)
        slots.tokens[slot, 6] = 100 + slot
    return slots


def test_rows() -> None:
    device_round = torch.full((1 + SLOTS, len(RoundField)), -1)
    rows = np.array([4, 0, 2])
    order = RoundOrder(3, np.array([3, 0, 1]), budget=5)
    send_round(device_round, slot_table(), rows, order=order, sampled=True, generations=7)
    assert device_round[0, :2].tolist() == [3, 5]
    sent = device_round[1:4]
    assert sent[:, RoundField.SLOT].tolist() == [4, 0, 2]
    assert sent[:, RoundField.LENGTH].tolist() == [3, 0, 1]
    assert sent[:, RoundField.GENERATION].tolist() == [7, 7, 7]
    assert sent[:, RoundField.TEMPERATURE].to(torch.int32).view(torch.float32).tolist() == [2.0, 0.0, 1.0]
    assert sent[:, RoundField.TOP_P].to(torch.int32).view(torch.float32).tolist() == [
        np.float32(0.6),
        1,
        np.float32(0.8),
    ]
    assert sent[:, RoundField.SEED].tolist() == [2**40 + 4, 2**40, 2**40 + 2]
    assert (device_round[4:] == -1).all()


def test_greedy_rows_after_sampled_ones() -> None:
    device_round = torch.zeros(1 + SLOTS, len(RoundField), dtype=torch.int64)
    slots, rows = slot_table(), np.array([4, 3])
    order = RoundOrder(0, np.array([0, 0]))
    send_round(device_round, slots, rows, order=order, sampled=True, generations=0)
    assert (device_round[1:3, RoundField.TEMPERATURE] != 0).all()
    send_round(device_round, slots, rows, order=order, sampled=False, generations=0)
    assert (device_round[1:3, RoundField.TEMPERATURE :] == 0).all()


def test_tables_follow_the_pool() -> None:
    rng = np.random.default_rng(3)
    pool = PagePool(40, 4, num_slots=SLOTS, max_pages_per_slot=9)
    tables = torch.full((SLOTS, 9), -1)
    mirror = TableMirror(pool, tables)
    held = np.zeros(SLOTS, dtype=np.int64)
    for _ in range(60):
        slot = int(rng.integers(SLOTS))
        if rng.random() < 0.3:
            pool.release(slot)
            held[slot] = 0
        more = int(rng.integers(0, min(9 - held[slot], pool.num_free) + 1))
        pool.grow(np.array([slot]), np.array([more]))
        held[slot] += more
        if rng.random() < 0.5:
            mirror.update()
            for row in range(SLOTS):
                assert tables[row, : held[row]].tolist() == pool.tables[row, : held[row]].tolist()
