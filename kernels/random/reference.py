"""Counter-based random numbers (Philox4x32-10), keyed by request and text position, never by batch row."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from dspark.kernels.random.host import host_words

SAMPLE = 0
DRAFT = 1
ACCEPT = 2

_ROUNDS = 10
_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_KEY_STEPS = (0x9E3779B9, 0xBB67AE85)
_LOW_32 = 0xFFFFFFFF
_LARGEST_UNIFORM = 1.0 - 2.0**-24


@dataclass(slots=True)
class NoiseKeys:
    """What one draw per row is keyed by; every field but `purpose` is a tensor [R]."""

    seeds: Tensor  # [R] int64
    positions: Tensor  # [R] int64, text position of the token being decided
    generations: Tensor  # [R] int64, 0 for SAMPLE
    purpose: int

    @property
    def is_cuda(self) -> bool:
        """Whether the rows are on a GPU, as of a tensor."""
        return self.seeds.is_cuda

    def at(self, offset: int) -> "NoiseKeys":
        """The same rows, `offset` text positions further on."""
        return replace(self, positions=self.positions + offset)


def philox4x32(counter: tuple[Tensor, Tensor, Tensor, Tensor], key: tuple[Tensor, Tensor]) -> tuple[Tensor, ...]:
    """Ten rounds on 32-bit words held in int64 tensors that broadcast against each other."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for round_index in range(_ROUNDS):
        if round_index:
            k0 = (k0 + _KEY_STEPS[0]) & _LOW_32
            k1 = (k1 + _KEY_STEPS[1]) & _LOW_32
        # The product wraps in int64; its 64 bits are right, so the shift only needs its sign bits masked away.
        product0 = c0 * _MULTIPLIERS[0]
        product1 = c2 * _MULTIPLIERS[1]
        low0 = product0 & _LOW_32
        low1 = product1 & _LOW_32
        c0 = ((product1 >> 32) ^ (c1 ^ k0)) & _LOW_32
        c2 = ((product0 >> 32) ^ (c3 ^ k1)) & _LOW_32
        c1, c3 = low1, low0
    return c0, c1, c2, c3


def _philox_blocks(keys: NoiseKeys, blocks: Tensor) -> Tensor:
    """blocks [n] or [R, n] int64 -> all four words of each block, [R, n, 4]."""
    seeds = keys.seeds[:, None]
    counter = (
        blocks,
        keys.positions[:, None] & _LOW_32,
        keys.generations[:, None] & _LOW_32,
        torch.full_like(seeds, keys.purpose),
    )
    words = philox4x32(counter, (seeds & _LOW_32, (seeds >> 32) & _LOW_32))
    return torch.stack(torch.broadcast_tensors(*words), dim=-1)


def philox_words(keys: NoiseKeys, indices: Tensor) -> Tensor:
    """indices [n] int64 -> 32-bit words in an int64 tensor [R, n]: word `index & 3` of block `index >> 2`."""
    return _words_at(keys, indices)


def _words_at(keys: NoiseKeys, indices: Tensor) -> Tensor:
    """The same for indices [n] or, each row its own, [R, n]."""
    words = _philox_blocks(keys, indices >> 2)
    lanes = (indices & 3).expand(words.shape[0], -1)[..., None]
    return words.gather(2, lanes)[..., 0]


def _to_uniform(words: Tensor) -> Tensor:
    # The open interval: the smallest value is 2^-33, and the cap keeps rounding in fp32 from reaching 1.
    return words.add_(0.5).mul_(2.0**-32).clamp_(max=_LARGEST_UNIFORM)


def _to_gumbel(words: Tensor) -> Tensor:
    return _to_uniform(words).neg_().log1p_().neg_().log_().neg_()


def _first_words(keys: NoiseKeys, num_blocks: int) -> Tensor:
    """Words of blocks 0 .. n-1 as numbers, [R, 4n] fp32."""
    if keys.seeds.device.type == "cpu":
        return host_words(keys.seeds, (keys.positions, keys.generations, keys.purpose), num_blocks)
    return _philox_blocks(keys, torch.arange(num_blocks, device=keys.seeds.device)).flatten(1).float()


def gumbel(keys: NoiseKeys, vocab_size: int) -> Tensor:
    """Standard Gumbel noise [R, V] fp32, one value a token id."""
    return _to_gumbel(_first_words(keys, (vocab_size + 3) // 4)[:, :vocab_size])


def gumbel_at(keys: NoiseKeys, tokens: Tensor) -> Tensor:
    """tokens [R, n] int64 -> the noise that `gumbel` has for them, [R, n] fp32."""
    return _to_gumbel(_words_at(keys, tokens).float())


def uniform(keys: NoiseKeys) -> Tensor:
    """One number a row in the open interval (0, 1): [R] fp32."""
    return _to_uniform(_first_words(keys, 1)[:, 0])
