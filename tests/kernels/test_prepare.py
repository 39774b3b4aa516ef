"""The inputs of a batch from the host's round and the requests' state: the kernel against its reference, that against
the host's way."""

from __future__ import annotations

from dataclasses import fields

import numpy as np
import pytest
import torch

from dspark.engine.kv_pool import PagePool
from dspark.engine.packing import pack
from dspark.kernels import BatchInputs, RoundField, SlotField
from dspark.kernels.prepare.reference import prepare_batch as reference

SLOTS, PAGE, CONTEXT = 9, 4, 300
STEPS = 7


def pool_of(seed: int) -> PagePool:
    """A pool whose slots hold pages in mixed order."""
    rng = np.random.default_rng(seed)
    pool = PagePool(1 + SLOTS * (CONTEXT // PAGE), PAGE, num_slots=SLOTS, max_pages_per_slot=CONTEXT // PAGE)
    for _ in range(CONTEXT // PAGE):
        for slot in rng.permutation(SLOTS):
            pool.grow(np.array([slot]), np.array([1]))
    return pool


def host_round(slots: np.ndarray, lengths: np.ndarray, *, seed: int) -> torch.Tensor:
    rng = np.random.default_rng(seed)
    rows = np.full((1 + SLOTS, len(RoundField)), 3, dtype=np.int64)
    n = len(slots)
    rows[0, 0] = n
    rows[1 : 1 + n, RoundField.SLOT] = slots
    rows[1 : 1 + n, RoundField.LENGTH] = lengths
    rows[1 : 1 + n, RoundField.GENERATION] = rng.integers(0, 2**40, n)
    for field in (RoundField.TEMPERATURE, RoundField.TOP_P):
        rows[1 : 1 + n, field] = rng.random(n, dtype=np.float32).view(np.int32)
    rows[1 : 1 + n, RoundField.TOP_K] = rng.integers(0, 50, n)
    rows[1 : 1 + n, RoundField.SEED] = rng.integers(0, 2**62, n)
    return torch.from_numpy(rows)


def state_of(slots: np.ndarray, starts: np.ndarray, *, finished: np.ndarray, seed: int) -> torch.Tensor:
    """Where requests stand; those of other slots stand nowhere."""
    rng = np.random.default_rng(seed)
    state = np.full((SLOTS, len(SlotField)), -3, dtype=np.int64)
    state[slots, SlotField.START] = starts
    state[slots, SlotField.ANCHOR] = rng.integers(5, 99, len(slots))
    state[slots, SlotField.TOKENS_LEFT] = np.where(finished, 0, rng.integers(3, 40, len(slots)))
    state[slots, SlotField.FINISHED] = finished
    return torch.from_numpy(state)


def poisoned(num_requests: int, num_tokens: int, device: torch.device) -> BatchInputs:
    """Prefix views of memory that holds -7 everywhere, and is larger."""
    whole = BatchInputs.zeros(num_requests + 2, num_tokens + 5, max_pages=CONTEXT // PAGE, device=device)
    for field in fields(whole):
        getattr(whole, field.name).fill_(-7)
    return whole.prefix(num_requests, num_tokens)


# Slots, starts, lengths asked for, which have finished.
CASES = {
    "empty": ([], [], [], []),
    "one": ([4], [0], [0], [0]),
    "full": (list(range(SLOTS)), [16] * SLOTS, [STEPS] * SLOTS, [0] * SLOTS),
    "mixed": ([8, 0, 3, 5], [3, 1, 250, 15], [0, 7, 3, 1], [0, 0, 0, 0]),
    "plain": ([7, 2, 1], [4, 5, 290], [0, 0, 0], [0, 0, 0]),
    "finished": ([8, 0, 3, 5, 1], [3, 1, 250, 15, 9], [0, 7, 3, 1, 2], [1, 0, 1, 0, 1]),
    "all finished": ([2, 6], [3, 11], [7, 0], [1, 1]),
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("block_width", [0, 7], ids=["target", "draft"])
@pytest.mark.parametrize("room", [0, 5], ids=["exact", "padded"])
@pytest.mark.parametrize("allocates", [False, True], ids=["as asked", "allocated"])
def test_kernel(device: torch.device, case: str, block_width: int, room: int, allocates: bool) -> None:
    from dspark.kernels.prepare.triton import prepare_batch

    slots, starts, lengths, finished = (np.array(column, dtype=np.int64) for column in CASES[case])
    rows = host_round(slots, lengths, seed=len(slots))
    state = state_of(slots, starts, finished=finished, seed=3)
    allocated = torch.arange(SLOTS) % 3 if allocates else None
    tables = torch.from_numpy(pool_of(1).tables.astype(np.int64))
    drafts = torch.randint(100, 200, (SLOTS, STEPS + 2))[:, 2:]
    total = block_width * len(slots) if block_width else int((lengths + 1).sum())
    requests, tokens = min(SLOTS, max(1, len(slots) + room)), total + 140 * room
    expected = poisoned(requests, tokens, torch.device("cpu"))
    options = {"page_size": PAGE, "block_width": block_width, "mask_token_id": 77}
    reference(rows, state, tables, drafts, out=expected, allocated=allocated, **options)
    actual = poisoned(requests, tokens, device)
    wide = torch.zeros(SLOTS, STEPS + 2, dtype=torch.int64, device=device)
    wide[:, 2:] = drafts
    allocated = None if allocated is None else allocated.to(device)
    place = (rows.to(device), state.to(device), tables.to(device))
    prepare_batch(*place, wide[:, 2:], out=actual, allocated=allocated, **options)
    for field in fields(BatchInputs):
        assert torch.equal(getattr(actual, field.name).cpu(), getattr(expected, field.name)), field.name


@pytest.mark.parametrize("case", [name for name in CASES if name != "empty"])
def test_reference_packs_like_the_host(case: str) -> None:
    slots, starts, asked, finished = (np.array(column, dtype=np.int64) for column in CASES[case])
    pool = pool_of(2)
    state = state_of(slots, starts, finished=finished, seed=1)
    left = state[slots, SlotField.TOKENS_LEFT].numpy()
    lengths = np.where(finished, -1, np.minimum(asked, left - 1))
    expected = pack(pool, slots, starts, lengths + 1)
    total = int((lengths + 1).sum())
    drafts = torch.randint(100, 200, (SLOTS, STEPS))
    rows = host_round(slots, asked, seed=0)
    out = poisoned(len(slots) + 1, total + 3, torch.device("cpu"))
    reference(rows, state, torch.from_numpy(pool.tables.astype(np.int64)), drafts, page_size=PAGE, out=out)
    assert out.starts[: len(slots)].tolist() == starts.tolist() and out.slots[: len(slots)].tolist() == slots.tolist()
    assert out.positions[:total].tolist() == expected.positions.tolist()
    assert out.cache_rows[:total].tolist() == expected.cache_rows.tolist()
    assert out.query_starts.tolist() == [*expected.query_starts.tolist(), total]
    assert out.kv_lens.tolist() == [*expected.kv_lens.tolist(), 0]
    assert out.lengths.tolist() == [*lengths.tolist(), -1]
    tokens = torch.cat([state[slots][:, SlotField.ANCHOR, None], drafts[: len(slots)]], dim=1)
    assert torch.equal(out.token_ids[:total], tokens[expected.request, expected.offsets])
    assert (out.token_ids[total:] == 0).all() and (out.cache_rows[total:] == 0).all()
    for request, table in enumerate(expected.block_tables):
        pages = -(-int(expected.kv_lens[request]) // PAGE)
        assert out.block_tables[request, :pages].tolist() == table[:pages].tolist()
