"""Device functions that scan a part of one row of logits."""

import triton
import triton.language as tl

from dspark.kernels.random import SAMPLE
from dspark.kernels.random.triton import gumbel_tile

_SAMPLE = tl.constexpr(SAMPLE)
_LAST_ID = tl.constexpr(2147483647)
# Not -inf, whose difference from itself is undefined.
_LOWEST = tl.constexpr(-1.0e30)


@triton.jit
def order_key(x):
    """fp32 -> int32 of the same order; the two zeros are one value."""
    bits = tl.where(x == 0.0, 0.0, x).to(tl.int32, bitcast=True)
    return tl.where(bits < 0, bits ^ 0x7FFFFFFF, bits)


@triton.jit
def order_key_value(key):
    """The fp32 number that has this key."""
    return tl.where(key < 0, key ^ 0x7FFFFFFF, key).to(tl.float32, bitcast=True)


@triton.jit
def is_kept(logit, token, threshold, cutoff):
    """Whether truncation leaves a token: above the threshold's key, or equal to it with an id up to the cutoff."""
    key = order_key(logit)
    return (key > threshold) | ((key == threshold) & (token <= cutoff))


@triton.jit
def pack_winner(score, token):
    """int64 whose maximum is the best score's, the lowest id's among equals."""
    return (order_key(score).to(tl.int64) << 32) | (token ^ _LAST_ID).to(tl.int64)


@triton.jit
def winner_token(packed, vocab_size):
    """int64 token id; inside the vocabulary also where every score was NaN."""
    return tl.minimum((packed & 0xFFFFFFFF) ^ _LAST_ID, vocab_size - 1)


@triton.jit
def has_winner(packed):
    """False where no score was above -inf."""
    return (packed >> 32) > -2139095041


@triton.jit
def best_of(scores, tokens):
    """scores, tokens [n] -> the packed winner."""
    top = tl.max(scores, axis=0)
    return pack_winner(top, tl.min(tl.where(scores == top, tokens, _LAST_ID), axis=0))


@triton.jit
def token_noise(first, seed, position, BLOCK: tl.constexpr):
    """The target's own noise [BLOCK] of token ids from `first` on, for the token at a text position."""
    zero = tl.zeros([1, 1], tl.int64)
    return tl.reshape(gumbel_tile(first, seed + zero, position + zero, zero, _SAMPLE, 1, BLOCK), [BLOCK])


@triton.jit
def scan_draw(
    row_ptr, first, last, temperature, seed, position, threshold, cutoff,
    NOISE: tl.constexpr, LIMITS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """The packed winner among tokens first .. last - 1: argmax of logit + temperature * noise over what is kept."""
    lanes = tl.arange(0, BLOCK)
    best = tl.full([BLOCK], float("-inf"), tl.float32)
    tokens = first + lanes
    for start in range(first, last, BLOCK):
        ids = start + lanes
        score = tl.load(row_ptr + ids, mask=ids < last, other=float("-inf"))
        # No comparison is true of a NaN; it has to win, so that whoever looks at the winner's logit learns of it.
        score = tl.where(score == score, score, float("inf"))
        if LIMITS:
            score = tl.where(is_kept(score, ids, threshold, cutoff), score, float("-inf"))
        # Two conditions: the first is known when the kernel is compiled.
        if NOISE:  # noqa: SIM102
            if temperature > 0:
                score += temperature * token_noise(start, seed, position, BLOCK)
        better = score > best
        best = tl.where(better, score, best)
        tokens = tl.where(better, ids, tokens)
    return best_of(best, tokens)


@triton.jit
def scan_mass(
    row_ptr, first, last, temperature, threshold, cutoff, LIMITS: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    """(largest logit, sum of exp((logit - largest) / temperature)) of what is kept among tokens first .. last - 1."""
    lanes = tl.arange(0, BLOCK)
    largest = tl.full([BLOCK], _LOWEST, tl.float32)
    mass = tl.zeros([BLOCK], tl.float32)
    rate = 1.0 / temperature
    for start in range(first, last, BLOCK):
        ids = start + lanes
        logit = tl.load(row_ptr + ids, mask=ids < last, other=float("-inf"))
        if LIMITS:
            logit = tl.where(is_kept(logit, ids, threshold, cutoff), logit, float("-inf"))
        # Lane by lane: a second exponential costs less than a reduction across warps in every turn.
        larger = tl.maximum(largest, logit)
        mass = mass * tl.exp((largest - larger) * rate) + tl.exp((logit - larger) * rate)
        largest = larger
    return merge_mass(largest, mass, rate)


@triton.jit
def merge_mass(largest, mass, rate):
    """Partial (largest, mass) [..., n] -> those of the whole, over the last axis."""
    top = tl.max(largest, axis=-1, keep_dims=True)
    total = tl.sum(mass * tl.exp((largest - top) * rate), axis=-1)
    return tl.max(largest, axis=-1), total
