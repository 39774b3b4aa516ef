"""Row seeds: what a row's random numbers are keyed by."""

from __future__ import annotations

from hashlib import blake2b

_SEED_BITS = 63


def row_seed(run_seed: int, index: int) -> int:
    """Seed of row `index` in a run with `--seed run_seed`, for rows that bring none: 63 bits, well mixed."""
    digest = blake2b(f"{run_seed}/{index}".encode(), digest_size=8).digest()
    return fold_seed(int.from_bytes(digest, "little"))


def fold_seed(seed: int) -> int:
    """Any whole number as a seed that fits a signed 64-bit tensor."""
    return seed & ((1 << _SEED_BITS) - 1)
