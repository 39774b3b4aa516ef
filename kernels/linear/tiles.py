"""Which products of few rows run in a launch of our own, and what a program of it computes."""

from dataclasses import dataclass
from typing import ClassVar

import torch

# Rows are multiplied element by element, which hides behind the reading of the weight only while they are this few ...
MAX_STREAMED_ROWS = 4
# ... and only pays while launches and latency, not bandwidth, decide. In elements of the weight.
MAX_STREAMED_WEIGHT = 4 << 20
# A single row costs so little arithmetic that it pays a while longer; gated, where it saves two launches, always.
MAX_SINGLE_ROW_WEIGHT = 12 << 20
# Tensor cores multiply more rows, while the launches around cuBLAS cost more than the product: up to one of their
# tiles, and a width that a program takes in one step.
MIN_CORE_ROWS, MAX_CORE_ROWS = 3, 16
MAX_CORE_WIDTH = 2048
MAX_CORE_WEIGHT = 2 << 20
# Of larger weights those that are wide, or gated, are read faster in steps than by cuBLAS, from two rows on.
MIN_DEEP_ROWS = 2
MIN_DEEP_WIDTH = 4096
MIN_DEEP_WEIGHT = MAX_STREAMED_WEIGHT
# With fewer programs than that too little of the device reads the weight.
_FEW_PROGRAMS = 48


@dataclass(frozen=True, slots=True)
class StreamTile:
    """A program's share where rows are multiplied element by element."""

    fuses_norm: ClassVar[bool] = True
    block_n: int  # columns of the result
    block_k: int
    num_warps: int

    def constants(self, rows: int) -> dict[str, int]:
        """The kernel's compile-time arguments for so many rows."""
        return {
            "BLOCK_T": _power_of_2(rows), "BLOCK_N": self.block_n, "BLOCK_K": self.block_k, "num_warps": self.num_warps
        }  # fmt: skip


@dataclass(frozen=True, slots=True)
class CoreTile:
    """A program's share on tensor cores."""

    block_n: int  # columns of the result
    parts: int  # of each step of parts * block_k, multiplied side by side
    block_k: int
    num_warps: int
    stages: int = 1  # steps on their way at once, if the width takes several
    fuses_norm: bool = True  # takes the norm before it in, a step being the whole width; else that is its own launch

    def constants(self, rows: int) -> dict[str, int]:
        """The kernel's compile-time arguments for so many rows."""
        return {
            "BLOCK_T": max(16, _power_of_2(rows)), "BLOCK_N": self.block_n, "PARTS": self.parts,
            "BLOCK_K": self.block_k, "STAGES": self.stages, "num_warps": self.num_warps,
        }  # fmt: skip


# Single rows of (weight rows, width) where another tile than the rule's was measurably faster on an H200.
SINGLE_ROW_TILES = {
    (576, 576): StreamTile(block_n=8, block_k=1024, num_warps=8),
    (6144, 2560): StreamTile(block_n=4, block_k=512, num_warps=2),
    (2560, 4096): StreamTile(block_n=4, block_k=1024, num_warps=4),
    (19456, 2560): StreamTile(block_n=2, block_k=512, num_warps=2),  # gated
    (2560, 9728): StreamTile(block_n=2, block_k=1024, num_warps=4),
}


def choose_tile(
    rows: int, weight_rows: int, width: int, gated: bool, dtype: torch.dtype
) -> StreamTile | CoreTile | None:
    """None: cuBLAS multiplies."""
    if rows == 0:
        return None
    if rows == 1 and (weight_rows, width) in SINGLE_ROW_TILES:
        return SINGLE_ROW_TILES[weight_rows, width]
    elements = weight_rows * width
    if rows <= MAX_CORE_ROWS and dtype != torch.float32:
        if rows >= MIN_CORE_ROWS and width <= MAX_CORE_WIDTH and elements <= MAX_CORE_WEIGHT:
            return _core_tile(weight_rows, width, gated)
        if rows >= MIN_DEEP_ROWS and elements > MIN_DEEP_WEIGHT and (gated or width >= MIN_DEEP_WIDTH):
            return _deep_core_tile(gated)
    if rows <= MAX_STREAMED_ROWS:
        small = elements <= MAX_STREAMED_WEIGHT
        if small or (rows == 1 and (gated or elements <= MAX_SINGLE_ROW_WEIGHT)):
            return _stream_tile(_power_of_2(rows), weight_rows, width, gated)
    return None


def _stream_tile(block_t: int, weight_rows: int, width: int, gated: bool) -> StreamTile:
    """Four weight rows a program, more where that still leaves 4096 programs."""
    taken = 4
    while taken < 16 and weight_rows // taken > 4096:
        taken *= 2
    # 64 accumulators a thread: wide steps keep enough loads in flight without a pipeline.
    num_warps = 4 if block_t == 1 else 8
    block_k = min(_power_of_2(width), 64 * 32 * num_warps // (taken * block_t))
    return StreamTile(taken // 2 if gated else taken, block_k, num_warps)


def _core_tile(weight_rows: int, width: int, gated: bool) -> CoreTile:
    """16 weight rows a program, 8 where that leaves few programs, and the whole width at once.

    So all of a program's weight is on its way while the kernel before it still runs.
    """
    taken = 16 if weight_rows // 16 >= _FEW_PROGRAMS else 8
    parts = 8
    block_k = max(_power_of_2(width) // parts, 16)
    return CoreTile(block_n=taken // 2 if gated else taken, parts=parts, block_k=block_k, num_warps=4)


def _deep_core_tile(gated: bool) -> CoreTile:
    """Two warps that share K, and small programs, of which a multiprocessor holds several.

    With the norm inside, the steps of x would not go straight from memory to the tensor cores.
    """
    return CoreTile(block_n=16, parts=2, block_k=128, num_warps=2, stages=3 if gated else 6, fuses_norm=False)


def _power_of_2(number: int) -> int:
    return 1 << (number - 1).bit_length()
