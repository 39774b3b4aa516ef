"""Philox words on a CPU: numpy multiplies 32-bit words and splits the products by a view.

Two to five times faster than the tensor form, which has to mask every product in 64 bits; the words are the same.
"""

import numpy as np
import torch
from torch import Tensor

_ROUNDS = 10
_LOW_32 = 0xFFFFFFFF
_MULTIPLIERS = (np.uint64(0xD2511F53), np.uint64(0xCD9E8D57))
_KEY_STEPS = (np.uint32(0x9E3779B9), np.uint32(0xBB67AE85))
# Blocks of a chunk: their words stay in the core's cache over all rounds.
_CHUNK_BLOCKS = 16384


def host_words(seeds: Tensor, counters: tuple[Tensor, Tensor, int], num_blocks: int) -> Tensor:
    """seeds [R] int64; counters: words 1 and 2 [R] int64 and word 3; all on the CPU -> words, rounded, [R, 4n] fp32.

    Word 0 of the counter runs over blocks 0 .. n-1.
    """
    num_rows = seeds.shape[0]
    out = np.empty((num_rows, num_blocks, 4), dtype=np.float32)
    blocks = np.arange(num_blocks, dtype=np.uint32)[None]
    columns = [_column(word) for word in (counters[0], counters[1], seeds, seeds >> 32)]
    rows_per_chunk = max(1, _CHUNK_BLOCKS // num_blocks)
    for start in range(0, num_rows, rows_per_chunk):
        chunk = slice(start, start + rows_per_chunk)
        c1, c2, k0, k1 = (column[chunk] for column in columns)
        c3 = np.full_like(c1, counters[2])
        for lane, words in enumerate(_rounds((blocks, c1, c2, c3), k0, k1)):
            out[chunk, :, lane] = words
    return torch.from_numpy(out.reshape(num_rows, 4 * num_blocks))


def _rounds(counter: tuple[np.ndarray, ...], k0: np.ndarray, k1: np.ndarray) -> tuple[np.ndarray, ...]:
    """Words of shapes that broadcast, [C, n] or [C, 1] or [1, n] uint32."""
    c0, c1, c2, c3 = counter
    for _ in range(_ROUNDS):
        low0, high0 = _halves(np.multiply(c0, _MULTIPLIERS[0], dtype=np.uint64))
        low1, high1 = _halves(np.multiply(c2, _MULTIPLIERS[1], dtype=np.uint64))
        c0 = high1 ^ c1 ^ k0
        c2 = high0 ^ c3 ^ k1
        c1, c3 = low1, low0
        k0, k1 = k0 + _KEY_STEPS[0], k1 + _KEY_STEPS[1]
    return c0, c1, c2, c3


def _halves(products: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Low and high words of 64-bit products, as views."""
    words = products.astype("<u8", copy=False).view("<u4")
    return words[:, 0::2], words[:, 1::2]


def _column(words: Tensor) -> np.ndarray:
    column: np.ndarray = (words & _LOW_32).numpy().astype(np.uint32)[:, None]
    return column
