"""How the GPU attention cuts a packed batch into programs: chosen once a forward, from static bounds alone."""

from dataclasses import dataclass

import torch
from torch import Tensor

from dspark.kernels.attention.layout import AttentionLayout
from dspark.kernels.sampling.scratch import scratch_for

# A split reads at least this many cache rows: below it, merging the splits costs more than they save ...
MIN_SPLIT_ROWS = 256
# ... unless the device would be mostly idle: then latency alone counts, and this many splits may be shorter.
MAX_SHORT_SPLITS = 16
MAX_SPLITS = 32
# Packed rows of the mean request up to which tiles of 16 are chosen, though the longest request has more than 16.
_FEW_ROWS = 12
# With fewer programs than multiprocessors (132) a tile is chosen for latency.
_FEW_PROGRAMS = 132
# Programs wanted on the whole device: 6 for each of 132 multiprocessors run at once, more would only add merging.
_WANTED_PROGRAMS = 792
# Splits of at most this many rows end before a shallow pipeline has hidden the latency of its first loads.
_SHORT_SPLIT_ROWS = 512


@dataclass(slots=True)
class SplitPlan:
    """Tile shapes and the scratch memory of split requests; serves every layer of a forward on one stream."""

    block_m: int  # packed rows (queries x query heads of one K/V head) of a program
    block_n: int  # cache rows of one loop step
    num_warps: int
    num_stages: int
    tiles: int  # programs along the packed rows of the longest request
    splits: int
    min_rows: int  # of a split
    partial: Tensor  # [splits, T, Hq, D] fp32
    log_sums: Tensor  # [splits, T, Hq] fp32
    # [R * tiles * Hkv] int32, splits of a tile that are done. Zero between launches.
    arrivals: Tensor

    def fits(self, q: Tensor) -> bool:
        """Whether the scratch memory was made for queries of this shape."""
        return self.splits == 1 or self.partial.shape[1:] == q.shape


@dataclass(frozen=True, slots=True)
class _Tile:
    min_rows: int  # of a split
    block_n: int
    num_warps: int
    num_stages: int


def _quick_tile(block_m: int, rows: int, *, head_dim: int) -> _Tile:
    """For few programs, where a split is one or two steps, of requests with so many packed rows at most."""
    if head_dim > 64:
        if block_m > 16:
            return _Tile(128, 128, 4, 2)
        return _Tile(64, 64, 4 if rows <= 4 else 2, 2)
    if block_m > 16:
        return _Tile(128, 64, 2, 5)
    # More rows are longer at work on a step than two warps should be, and merging their splits takes longer too.
    return _Tile(64 if rows <= 16 else 128, 64, 2 if rows <= 4 else 4, 2)


def plan_splits(layout: AttentionLayout, q: Tensor, k_cache: Tensor) -> SplitPlan:
    """Reads only shapes and the layout's host-side bounds, so it may run inside a graph capture.

    A plan made inside a capture lives in the graph's memory: keep its layout to that graph.
    """
    requests = layout.query_starts.shape[0] - 1
    visible = layout.max_kv_len if layout.kv_rows is None else layout.kv_rows.shape[1]
    tokens, heads, head_dim = q.shape
    kv_heads = k_cache.shape[1]
    group = heads // kv_heads
    full_precision = q.dtype == torch.float32
    rows = layout.max_query_len * group
    block_m = 16 if rows <= 16 else 32 if rows <= 32 or full_precision else 64
    # A second program for a request's other rows reads its K and V again. It pays where few have any, or where the
    # device is mostly idle.
    halved = tokens * group <= _FEW_ROWS * requests or 2 * requests * kv_heads < _FEW_PROGRAMS
    if block_m == 32 and not full_precision and halved:
        block_m = 16
    tiles = max(1, -(-rows // block_m))
    programs = requests * tiles * kv_heads
    wanted = -(-_WANTED_PROGRAMS // max(1, programs))
    quick = None
    if programs < _FEW_PROGRAMS and block_m <= 32 and head_dim <= 128 and not full_precision:
        quick = _quick_tile(block_m, rows, head_dim=head_dim)
    most = -(-visible // MIN_SPLIT_ROWS)
    if quick is not None:
        most = max(most, min(MAX_SHORT_SPLITS, -(-visible // quick.min_rows)))
    splits = max(1, min(MAX_SPLITS, wanted, most))
    # A power of two: buckets share their compiled kernels.
    splits = 1 << (splits.bit_length() - 1)
    # The pipeline spends half of them on the block table: 5 keep two steps of K and V in flight, 3 keep one, which
    # leaves room for more programs on a multiprocessor. Large tiles have few of them anyway.
    shallow = head_dim > 64 if block_m == 64 else -(-visible // splits) > _SHORT_SPLIT_ROWS
    num_stages = 3 if full_precision or shallow else 5
    scratch = (splits, tokens, heads) if splits > 1 else (0, 0, 0)
    # fp32 tiles are products of scalars: few accumulators a thread keep them out of local memory.
    num_warps = 8 if full_precision else 4 if block_m == 64 else 2
    tile = quick or _Tile(MIN_SPLIT_ROWS, 16 if full_precision else 64, num_warps, num_stages)
    return SplitPlan(
        block_m=block_m,
        block_n=tile.block_n,
        num_warps=tile.num_warps,
        num_stages=tile.num_stages,
        tiles=tiles,
        splits=splits,
        min_rows=tile.min_rows,
        partial=torch.empty(*scratch, head_dim, dtype=torch.float32, device=q.device),
        log_sums=torch.empty(scratch, dtype=torch.float32, device=q.device),
        arrivals=scratch_for("attention", q.device, programs).arrivals,
    )
