"""Row seeds: what a row's random numbers are keyed by."""

from __future__ import annotations

from hashlib import blake2b

_BITS = 64


def row_seed(run_seed: int, index: int) -> int:
    """Seed of row `index` in a run with `--seed run_seed`, for rows that bring none: 64 bits, well mixed."""
    digest = blake2b(f"{run_seed}/{index}".encode(), digest_size=_BITS // 8).digest()
    return fold_seed(int.from_bytes(digest, "little"))


def fold_seed(seed: int) -> int:
    """Any whole number as the signed 64-bit number with the same low 64 bits."""
    half = 1 << (_BITS - 1)
    return (seed + half) % (1 << _BITS) - half
