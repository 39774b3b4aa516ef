"""The same numbers as reference.py: device functions for the kernels that draw, and ops of their own."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from dspark.kernels.random.reference import NoiseKeys

_BLOCK = 1024


@triton.jit
def to_uniform(word):
    """uint32 -> fp32 in the open interval (0, 1)."""
    return tl.minimum((word.to(tl.float32) + 0.5) * 2.3283064365386963e-10, 0.9999999403953552)


@triton.jit
def to_gumbel(word):
    """uint32 -> fp32, -log(-log1p(-u))."""
    u = to_uniform(word)
    # 1 - u loses what a small u holds, so that range takes the series of -log1p(-u) instead.
    series = 1 / 4 + u * (1 / 5 + u * (1 / 6 + u * (1 / 7)))
    series = u * (1.0 + u * (1 / 2 + u * (1 / 3 + u * series)))
    return -tl.log(tl.where(u < 0.125, series, -tl.log(1.0 - u)))


@triton.jit
def philox_block(block, seed, position, generation, purpose):
    """The four words of a block; the arguments broadcast against each other."""
    return tl.philox(seed, block.to(tl.int32), position.to(tl.int32), generation.to(tl.int32), purpose)


@triton.jit
def row_uniform(seed, position, generation, purpose):
    """One number for each row of the arguments."""
    first, _, _, _ = philox_block(tl.zeros_like(position), seed, position, generation, purpose)
    return to_uniform(first)


@triton.jit
def gumbel_tile(first, seed, position, generation, purpose, ROWS: tl.constexpr, WIDTH: tl.constexpr):
    """Noise [ROWS, WIDTH] of token ids first .. first + WIDTH - 1; first a multiple of 4; keys [ROWS, 1]."""
    blocks = (first // 4 + tl.arange(0, WIDTH // 4))[None, :]
    w0, w1, w2, w3 = philox_block(blocks, seed, position, generation, purpose)
    # Each block's words become four neighbours, which costs no work a token twice.
    words = tl.join(tl.join(w0, w2), tl.join(w1, w3))
    return to_gumbel(tl.reshape(words, [ROWS, WIDTH]))


@triton.jit
def words_at(index, seed, position, generation, purpose):
    """Word `index & 3` of block `index >> 2`, for each index."""
    w0, w1, w2, w3 = philox_block(index >> 2, seed, position, generation, purpose)
    lane = index & 3
    return tl.where(lane < 2, tl.where(lane == 0, w0, w1), tl.where(lane == 2, w2, w3))


@triton.jit
def _words_kernel(seeds, positions, generations, purpose, indices, out, n, BLOCK: tl.constexpr):
    row = tl.program_id(1)
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    index = tl.load(indices + at, mask=at < n, other=0)
    word = words_at(index, tl.load(seeds + row), tl.load(positions + row), tl.load(generations + row), purpose)
    tl.store(out + row.to(tl.int64) * n + at, word.to(tl.int64), mask=at < n)


@triton.jit
def _gumbel_kernel(seeds, positions, generations, purpose, out, n, BLOCK: tl.constexpr):
    row = tl.program_id(1)
    first = tl.program_id(0) * BLOCK
    zero = tl.zeros([1, 1], tl.int64)
    noise = gumbel_tile(
        first,
        tl.load(seeds + row) + zero,
        tl.load(positions + row) + zero,
        tl.load(generations + row) + zero,
        purpose,
        1,
        BLOCK,
    )
    at = first + tl.arange(0, BLOCK)[None, :]
    tl.store(out + row.to(tl.int64) * n + at, noise, mask=at < n)


@triton.jit
def _uniform_kernel(seeds, positions, generations, purpose, out, n, BLOCK: tl.constexpr):
    row = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = row < n
    drawn = row_uniform(
        tl.load(seeds + row, mask=mask, other=0),
        tl.load(positions + row, mask=mask, other=0),
        tl.load(generations + row, mask=mask, other=0),
        purpose,
    )
    tl.store(out + row, drawn, mask=mask)


def philox_words(keys: NoiseKeys, indices: Tensor) -> Tensor:
    """indices [n] int64 -> 32-bit words in an int64 tensor [R, n]: word `index & 3` of block `index >> 2`."""
    num_rows, n = keys.seeds.shape[0], indices.shape[0]
    out = torch.empty(num_rows, n, dtype=torch.int64, device=keys.seeds.device)
    grid = (triton.cdiv(n, _BLOCK), num_rows)
    _words_kernel[grid](
        keys.seeds, keys.positions, keys.generations, keys.purpose, indices, out, n, BLOCK=_BLOCK, num_warps=4
    )
    return out


def gumbel(keys: NoiseKeys, vocab_size: int) -> Tensor:
    """Standard Gumbel noise [R, V] fp32, one value a token id."""
    num_rows = keys.seeds.shape[0]
    out = torch.empty(num_rows, vocab_size, dtype=torch.float32, device=keys.seeds.device)
    grid = (triton.cdiv(vocab_size, _BLOCK), num_rows)
    _gumbel_kernel[grid](
        keys.seeds, keys.positions, keys.generations, keys.purpose, out, vocab_size, BLOCK=_BLOCK, num_warps=4
    )
    return out


def uniform(keys: NoiseKeys) -> Tensor:
    """One number a row in the open interval (0, 1): [R] fp32."""
    num_rows = keys.seeds.shape[0]
    out = torch.empty(num_rows, dtype=torch.float32, device=keys.seeds.device)
    grid = (triton.cdiv(num_rows, _BLOCK),)
    _uniform_kernel[grid](
        keys.seeds, keys.positions, keys.generations, keys.purpose, out, num_rows, BLOCK=_BLOCK, num_warps=4
    )
    return out
