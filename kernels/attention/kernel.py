"""The GPU attention itself: one kernel for decoding, verification, draft blocks and prefill."""

import triton
import triton.language as tl

from dspark.kernels.pdl import await_inputs


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


@triton.jit
def _rotated(
    at, inside, dim, partner, cosine, sine, gain, other_gain, eps, HEAD_DIM: tl.constexpr, NORM: tl.constexpr
):  # fmt: skip
    """Heads at `at` [n, 1], normalised and rotated [n, D] fp32."""
    narrow = tl.load(at + dim[None, :], mask=inside, other=0.0)
    own = narrow.to(tl.float32)
    other = tl.load(at + partner[None, :], mask=inside, other=0.0).to(tl.float32)
    if NORM:
        scale = tl.rsqrt(tl.sum(own * own, axis=1) / HEAD_DIM + eps)[:, None]
        # Rounded between norm and rotation, as the models were trained.
        own = (own * scale * gain).to(narrow.dtype).to(tl.float32)
        other = (other * scale * other_gain).to(narrow.dtype).to(tl.float32)
    return own * cosine + other * sine


# Counts vary from forward to forward: a variant for each of their divisibilities would compile in mid-run.
@triton.jit(do_not_specialize=["num_tokens", "num_requests"])
def attention_kernel(
    q, cos, sin, angle_rows, cache_rows, q_norm, k_norm, eps, angle_stride,
    k_cache, v_cache, out, partial, log_sums, arrivals, tables, query_starts, kv_lens,
    scale, num_tokens, num_requests, q_stride, cache_stride, table_stride,
    KV_HEADS: tl.constexpr, GROUP: tl.constexpr, HEAD_DIM: tl.constexpr, PAGE: tl.constexpr, CAUSAL: tl.constexpr,
    WINDOW: tl.constexpr, SPLITS: tl.constexpr, MIN_ROWS: tl.constexpr, BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr, BLOCK_DIM: tl.constexpr, BLOCK_ROWS: tl.constexpr, PRECISION: tl.constexpr,
    ROPE: tl.constexpr, NORM: tl.constexpr, BLOCK_Q: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Program (request, tile of packed rows x K/V head, split). A packed row is (query, query head of the K/V head).

    WINDOW 0: tables [R, M] are block tables. Else they are cache rows [R, WINDOW], -1 = none, and if CAUSAL the last
    ones are the queries' own.
    ROPE: q is [T, (Hq+2Hkv)*D] as the projection made it. Every program rotates its queries, and rotates and stores the
    new rows among those that it reads before it reads them: it waits for no other. Programs of several tiles store the
    same values.
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
        await_inputs(PDL)
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
    first_fresh = end - num_queries  # cache row of the request's own first query, where it is causal or ROPE
    limit = tl.zeros([BLOCK_M], dtype=tl.int32) + end  # first cache row that a packed row does not see
    if CAUSAL:
        limit = first_fresh + query + 1
        end = first_fresh + tl.minimum((tile * BLOCK_M + BLOCK_M - 1) // GROUP, num_queries - 1) + 1
    end = tl.maximum(end, 0)

    # Splits share what is really visible; those that are left over have nothing to do.
    split_rows = tl.cdiv(tl.maximum(tl.cdiv(end, SPLITS), MIN_ROWS), BLOCK_N) * BLOCK_N
    active = tl.maximum(tl.cdiv(end, split_rows), 1)
    if split >= active:
        return
    begin = split * split_rows
    end = tl.minimum(end, begin + split_rows)

    table = tables + request.to(tl.int64) * table_stride
    column = tl.arange(0, BLOCK_N)

    q_at = q + (first_token + query)[:, None] * q_stride + head[:, None] * HEAD_DIM
    q_inside = row_inside[:, None] & dim_inside[None, :]
    if ROPE:
        # Dimension i turns with i + D/2, or i - D/2; the sine carries the sign.
        partner = tl.where(dim < HEAD_DIM // 2, dim + HEAD_DIM // 2, dim - HEAD_DIM // 2)
        angle = tl.load(angle_rows + first_token + query, mask=row_inside, other=0).to(tl.int64)
        cosine = tl.load(cos + angle[:, None] * angle_stride + dim[None, :], mask=q_inside, other=0.0)
        sine = tl.load(sin + angle[:, None] * angle_stride + dim[None, :], mask=q_inside, other=0.0)
        fresh = tl.arange(0, BLOCK_Q)
        place = first_fresh + fresh
        mine = (fresh < num_queries) & (place >= begin) & (place < end)
        fresh_angle = tl.load(angle_rows + first_token + fresh, mask=mine, other=0).to(tl.int64)
        fresh_row = tl.load(cache_rows + first_token + fresh, mask=mine, other=0).to(tl.int64)
        fresh_inside = mine[:, None] & dim_inside[None, :]
        fresh_cosine = tl.load(cos + fresh_angle[:, None] * angle_stride + dim[None, :], mask=fresh_inside, other=0.0)
        fresh_sine = tl.load(sin + fresh_angle[:, None] * angle_stride + dim[None, :], mask=fresh_inside, other=0.0)
        q_gain = cosine
        q_other_gain = cosine
        k_gain = fresh_cosine
        k_other_gain = fresh_cosine
        if NORM:
            q_gain = tl.load(q_norm + dim, mask=dim_inside, other=0.0).to(tl.float32)[None, :]
            q_other_gain = tl.load(q_norm + partner, mask=dim_inside, other=0.0).to(tl.float32)[None, :]
            k_gain = tl.load(k_norm + dim, mask=dim_inside, other=0.0).to(tl.float32)[None, :]
            k_other_gain = tl.load(k_norm + partner, mask=dim_inside, other=0.0).to(tl.float32)[None, :]
        await_inputs(PDL)
        queries = _rotated(q_at, q_inside, dim, partner, cosine, sine, q_gain, q_other_gain, eps, HEAD_DIM, NORM)
        queries = queries.to(q.dtype.element_ty)
        # Every split comes here, so that no barrier is inside a branch.
        source = q + (first_token + fresh)[:, None] * q_stride + (KV_HEADS * GROUP + kv_head) * HEAD_DIM
        turned = _rotated(
            source, fresh_inside, dim, partner, fresh_cosine, fresh_sine, k_gain, k_other_gain, eps, HEAD_DIM, NORM
        )
        raw = tl.load(source + KV_HEADS * HEAD_DIM + dim[None, :], mask=fresh_inside, other=0.0)
        stored = fresh_row[:, None] * cache_stride + kv_head * HEAD_DIM + dim[None, :]
        tl.store(k_cache + stored, turned.to(k_cache.dtype.element_ty), mask=fresh_inside)
        tl.store(v_cache + stored, raw.to(v_cache.dtype.element_ty), mask=fresh_inside)
        tl.debug_barrier()
    else:
        await_inputs(PDL)
        queries = tl.load(q_at + dim[None, :], mask=q_inside, other=0.0)  # [BLOCK_M, D]
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
