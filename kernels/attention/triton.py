"""Paged attention of packed queries on the GPU: one kernel for decoding, verification, draft blocks and prefill."""

import math

import torch
import triton
import triton.language as tl
from torch import Tensor

from .layout import AttentionLayout
from .split_plan import MIN_SPLIT_ROWS, SplitPlan, plan_splits

# Of a merge step: as many registers as the main loop takes anyway.
_MERGED_ELEMENTS = 4096


@triton.jit
def _merge_splits(
    partial, log_sums, out, first_row, begin, end, active, split_stride,
    SPLITS: tl.constexpr, KV_HEADS: tl.constexpr, GROUP: tl.constexpr, HEAD_DIM: tl.constexpr,
    BLOCK_DIM: tl.constexpr, BLOCK_ROWS: tl.constexpr,
):  # fmt: skip
    """Weigh the splits' outputs of packed rows begin .. end by their shares of the softmax's sum, in a fixed order."""
    split = tl.arange(0, SPLITS)[:, None]
    dim = tl.arange(0, BLOCK_DIM)[None, :]
    # All splits of some rows at once, so that their loads are in flight together.
    for start in range(begin, end, BLOCK_ROWS):
        packed = start + tl.arange(0, BLOCK_ROWS)
        inside = packed < end
        row = first_row + packed // GROUP * (KV_HEADS * GROUP) + packed % GROUP
        there = (split < active) & inside[None, :]
        # Past the first-level cache: other multiprocessors wrote these during this launch.
        log_sum = tl.load(
            log_sums + split * split_stride + row[None, :], mask=there, other=float("-inf"), cache_modifier=".cg"
        )  # [splits, rows]
        element = row[:, None] * HEAD_DIM + dim  # [rows, D]
        piece = tl.load(
            partial + split[:, :, None] * (split_stride * HEAD_DIM) + element[None, :, :],
            mask=there[:, :, None] & (dim < HEAD_DIM)[None, :, :],
            other=0.0,
            cache_modifier=".cg",
        )  # [splits, rows, D]
        largest = tl.max(log_sum, axis=0)
        largest = tl.where(largest == float("-inf"), 0.0, largest)
        weight = tl.exp2(log_sum - largest[None, :])
        total = tl.sum(weight, axis=0)
        merged = tl.sum(piece * weight[:, :, None], axis=0) / tl.where(total == 0.0, 1.0, total)[:, None]
        tl.store(out + element, merged.to(out.dtype.element_ty), mask=inside[:, None] & (dim < HEAD_DIM))


# Counts vary from forward to forward: a variant for each of their divisibilities would compile in mid-run.
@triton.jit(do_not_specialize=["num_tokens", "num_requests"])
def _attention_kernel(
    q, k_cache, v_cache, out, partial, log_sums, arrivals, tables, query_starts, kv_lens,
    scale, num_tokens, num_requests, q_stride, cache_stride, table_stride,
    KV_HEADS: tl.constexpr, GROUP: tl.constexpr, HEAD_DIM: tl.constexpr, PAGE: tl.constexpr, CAUSAL: tl.constexpr,
    WINDOW: tl.constexpr, SPLITS: tl.constexpr, MIN_ROWS: tl.constexpr, BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr, BLOCK_DIM: tl.constexpr, BLOCK_ROWS: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Program (request, tile of packed rows x K/V head, split). A packed row is (query, query head of the K/V head).

    WINDOW 0: tables [R, M] are block tables. Else they are cache rows [R, WINDOW], -1 = none.
    """
    request = tl.program_id(0)
    kv_head = tl.program_id(1) % KV_HEADS
    tile = tl.program_id(1) // KV_HEADS
    split = tl.program_id(2)
    first_token = tl.load(query_starts + request).to(tl.int64)
    lane = tl.arange(0, BLOCK_M)
    dim = tl.arange(0, BLOCK_DIM)
    dim_inside = dim < HEAD_DIM

    if request == num_requests:
        # The row after the last request clears the padding tokens, so that what follows stays finite there.
        step = tl.num_programs(1) // KV_HEADS * SPLITS * BLOCK_M
        padding = (num_tokens - first_token.to(tl.int32)) * GROUP
        for start in range((tile * SPLITS + split) * BLOCK_M, padding, step):
            packed = start + lane
            row = (first_token + packed // GROUP) * (KV_HEADS * GROUP) + kv_head * GROUP + packed % GROUP
            tl.store(
                out + row[:, None] * HEAD_DIM + dim[None, :],
                tl.zeros([BLOCK_M, BLOCK_DIM], dtype=out.dtype.element_ty),
                mask=(packed < padding)[:, None] & dim_inside[None, :],
            )
        return

    num_queries = (tl.load(query_starts + request + 1) - first_token).to(tl.int32)
    if tile * BLOCK_M >= num_queries * GROUP:
        return
    packed = tile * BLOCK_M + lane
    query = packed // GROUP
    head = kv_head * GROUP + packed % GROUP
    row_inside = query < num_queries
    end = tl.full([], WINDOW, dtype=tl.int32)
    if WINDOW == 0:
        end = tl.load(kv_lens + request)
    limit = tl.zeros([BLOCK_M], dtype=tl.int32) + end  # first cache row that a packed row does not see
    if CAUSAL:
        limit = end - num_queries + query + 1
        end = end - num_queries + tl.minimum((tile * BLOCK_M + BLOCK_M - 1) // GROUP, num_queries - 1) + 1
    end = tl.maximum(end, 0)

    # Splits share what is really visible; those that are left over have nothing to do.
    split_rows = tl.cdiv(tl.maximum(tl.cdiv(end, SPLITS), MIN_ROWS), BLOCK_N) * BLOCK_N
    active = tl.maximum(tl.cdiv(end, split_rows), 1)
    if split >= active:
        return
    begin = split * split_rows
    end = tl.minimum(end, begin + split_rows)

    queries = tl.load(
        q + (first_token + query)[:, None] * q_stride + head[:, None] * HEAD_DIM + dim[None, :],
        mask=row_inside[:, None] & dim_inside[None, :],
        other=0.0,
    )  # [BLOCK_M, D]
    table = tables + request.to(tl.int64) * table_stride
    column = tl.arange(0, BLOCK_N)
    best = tl.full([BLOCK_M], float("-inf"), dtype=tl.float32)
    total = tl.zeros([BLOCK_M], dtype=tl.float32)
    acc = tl.zeros([BLOCK_M, BLOCK_DIM], dtype=tl.float32)
    for start in range(begin, end, BLOCK_N):
        position = start + column
        inside = position < end
        if WINDOW == 0:
            page = tl.load(table + position // PAGE, mask=inside, other=0).to(tl.int64)
            cache_row = page * PAGE + position % PAGE
        else:
            cache_row = tl.load(table + position, mask=inside, other=-1).to(tl.int64)
            inside = cache_row >= 0
        address = cache_row[:, None] * cache_stride + kv_head * HEAD_DIM + dim[None, :]
        # Rows past the end may hold NaN, which a zero weight would not remove: they are read as zeros.
        mask = inside[:, None] & dim_inside[None, :]
        keys = tl.load(k_cache + address, mask=mask, other=0.0)  # [BLOCK_N, D]
        values = tl.load(v_cache + address, mask=mask, other=0.0)
        score = tl.dot(queries, tl.trans(keys), input_precision=PRECISION) * scale
        seen = position[None, :] < limit[:, None]
        if WINDOW > 0:
            seen = seen & inside[None, :]
        score = tl.where(seen, score, float("-inf"))
        larger = tl.maximum(best, tl.max(score, axis=1))
        # A row that has seen nothing yet keeps weight 0 instead of exp(-inf + inf).
        base = tl.where(larger == float("-inf"), 0.0, larger)
        weight = tl.exp2(score - base[:, None])
        shrink = tl.exp2(best - base)
        total = total * shrink + tl.sum(weight, axis=1)
        acc = acc * shrink[:, None] + tl.dot(weight.to(values.dtype), values, input_precision=PRECISION)
        best = larger

    total = tl.where(total == 0.0, 1.0, total)
    acc = acc / total[:, None]
    rows = (first_token + query) * (KV_HEADS * GROUP) + head  # of out's [T * Hq, D]
    element = rows[:, None] * HEAD_DIM + dim[None, :]
    mask = row_inside[:, None] & dim_inside[None, :]
    if active == 1:
        tl.store(out + element, acc.to(out.dtype.element_ty), mask=mask)
        return
    if SPLITS > 1:
        split_stride = num_tokens.to(tl.int64) * (KV_HEADS * GROUP)
        tl.store(partial + split * split_stride * HEAD_DIM + element, acc, mask=mask)
        tl.store(log_sums + split * split_stride + rows, best + tl.log2(total), mask=row_inside)
        # All warps' stores come before the one thread's arrival, which publishes them to the device.
        tl.debug_barrier()
        counter = arrivals + tl.program_id(1) * num_requests + request
        if tl.atomic_add(counter, 1, sem="acq_rel", scope="gpu") == active - 1:
            tl.store(counter, 0)
            first_row = first_token * (KV_HEADS * GROUP) + kv_head * GROUP
            last_packed = tl.minimum(tile * BLOCK_M + BLOCK_M, num_queries * GROUP)
            _merge_splits(
                partial, log_sums, out, first_row, tile * BLOCK_M, last_packed, active, split_stride,
                SPLITS=SPLITS, KV_HEADS=KV_HEADS, GROUP=GROUP, HEAD_DIM=HEAD_DIM, BLOCK_DIM=BLOCK_DIM,
                BLOCK_ROWS=BLOCK_ROWS,
            )  # fmt: skip


def paged_attention(q: Tensor, k_cache: Tensor, v_cache: Tensor, layout: AttentionLayout, *, scale: float) -> Tensor:
    """q [T, Hq, D]; k_cache, v_cache [N, Hkv, D] -> [T, Hq, D]. What a query sees: `AttentionLayout`.

    Rows that no request owns, and queries that see nothing, come back as zeros.
    """
    tokens, heads, head_dim = q.shape
    kv_heads = k_cache.shape[1]
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    if tokens == 0:
        return out
    assert q.stride()[1:] == k_cache.stride()[1:] == (head_dim, 1) and k_cache.stride() == v_cache.stride()
    plan = layout.plan
    if not isinstance(plan, SplitPlan) or not plan.fits(q):
        plan = layout.plan = plan_splits(layout, q, k_cache)
    requests = layout.query_starts.shape[0] - 1
    windowed = layout.kv_rows is not None
    tables = layout.block_tables if layout.kv_rows is None else layout.kv_rows
    assert tables.stride(1) == 1
    block_dim = max(16, triton.next_power_of_2(head_dim))
    _attention_kernel[(requests + 1, plan.tiles * kv_heads, plan.splits)](
        q,
        k_cache,
        v_cache,
        out,
        plan.partial,
        plan.log_sums,
        plan.arrivals,
        tables,
        layout.query_starts,
        layout.kv_lens,
        # The softmax runs in powers of two.
        scale * math.log2(math.e),
        tokens,
        requests,
        q.stride(0),
        k_cache.stride(0),
        tables.stride(0),
        KV_HEADS=kv_heads,
        GROUP=heads // kv_heads,
        HEAD_DIM=head_dim,
        PAGE=layout.page_size,
        CAUSAL=layout.causal and not windowed,
        WINDOW=tables.shape[1] if windowed else 0,
        SPLITS=plan.splits,
        MIN_ROWS=MIN_SPLIT_ROWS,
        BLOCK_M=plan.block_m,
        BLOCK_N=plan.block_n,
        BLOCK_DIM=block_dim,
        BLOCK_ROWS=min(plan.block_m, max(1, _MERGED_ELEMENTS // (plan.splits * block_dim))),
        PRECISION="ieee" if q.dtype == torch.float32 else "tf32",
        num_warps=plan.num_warps,
        num_stages=plan.num_stages,
    )
    return out
