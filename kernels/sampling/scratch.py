"""What the programs of one launch share: running winners and arrival counters."""

import functools
from dataclasses import dataclass

import torch
import triton
from torch import Tensor

# Less than every packed winner.
NO_WINNER = torch.iinfo(torch.int64).min
_SMALLEST = 1024
# A split reads at least this many logits, and a launch has about this many programs: 8 a multiprocessor of an H200.
_SPLIT_TOKENS = 4096
_PROGRAMS = 1056


@dataclass(slots=True)
class Scratch:
    """Every launch leaves it as it found it, so that a CUDA graph can be replayed with no launch that resets."""

    winners: Tensor  # [n] int64, NO_WINNER between launches
    arrivals: Tensor  # [n] int32, 0 between launches


@functools.cache
def _allocate(operation: str, device: torch.device, capacity: int) -> Scratch:
    return Scratch(
        winners=torch.full((capacity,), NO_WINNER, dtype=torch.int64, device=device),
        arrivals=torch.zeros(capacity, dtype=torch.int32, device=device),
    )


def scratch_for(operation: str, device: torch.device, rows: int) -> Scratch:
    """The scratch of an operation for at least `rows` rows. It stays where it is, for captured graphs hold its address.

    Launches of one operation share it, so they must follow one another on the device. The first call for a size
    allocates, which belongs before a capture.
    """
    return _allocate(operation, device, max(_SMALLEST, triton.next_power_of_2(rows)))


def splits_block(vocab_size: int) -> int:
    """A power of two that no number of splits exceeds: one for all batch sizes, so that none compiles a kernel anew."""
    return triton.next_power_of_2(triton.cdiv(vocab_size, _SPLIT_TOKENS))


def split_tokens(rows: int, vocab_size: int, block: int) -> int:
    """Tokens a program scans, a multiple of `block`: few rows are cut so that they still fill the device."""
    wanted = triton.cdiv(_PROGRAMS, rows)
    tokens = max(triton.cdiv(vocab_size, wanted), _SPLIT_TOKENS)
    return triton.cdiv(min(tokens, vocab_size), block) * block
