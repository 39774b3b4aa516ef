"""The inputs of a packed batch from the host's round and the requests' state: one launch, one program a request."""

import triton
import triton.language as tl
from torch import Tensor

from dspark.kernels.commit.fields import SlotField
from dspark.kernels.prepare.inputs import BatchInputs, RoundField

_SLOT = tl.constexpr(int(RoundField.SLOT))
_LENGTH = tl.constexpr(int(RoundField.LENGTH))
_GENERATION = tl.constexpr(int(RoundField.GENERATION))
_TEMPERATURE = tl.constexpr(int(RoundField.TEMPERATURE))
_TOP_P = tl.constexpr(int(RoundField.TOP_P))
_TOP_K = tl.constexpr(int(RoundField.TOP_K))
_SEED = tl.constexpr(int(RoundField.SEED))
_FIELDS = tl.constexpr(len(RoundField))
_START = tl.constexpr(int(SlotField.START))
_ANCHOR = tl.constexpr(int(SlotField.ANCHOR))
_TOKENS_LEFT = tl.constexpr(int(SlotField.TOKENS_LEFT))
_FINISHED = tl.constexpr(int(SlotField.FINISHED))
_STATE_FIELDS = tl.constexpr(len(SlotField))


@triton.jit
def _verified(host_round, state, allocated, row, is_real):
    """Drafted tokens of batch rows `row` that the target runs; -1: finished, or no request."""
    own = host_round + (1 + row) * _FIELDS
    at = state + tl.load(own + _SLOT, mask=is_real, other=0) * _STATE_FIELDS
    length = tl.minimum(
        tl.load(own + _LENGTH, mask=is_real, other=-1), tl.load(at + _TOKENS_LEFT, mask=is_real, other=0) - 1
    )
    if allocated is not None:
        length = tl.minimum(length, tl.load(allocated + row, mask=is_real, other=-1))
    return tl.where(is_real & (tl.load(at + _FINISHED, mask=is_real, other=1) == 0), length, -1)


@triton.jit(do_not_specialize=["num_rows", "num_tokens", "mask_token_id"])
def _prepare_kernel(
    host_round,  # [1 + S, fields] int64
    state,  # [S, fields] int64
    allocated,  # [R] int64, or None
    tables,  # [S, M] int64
    drafts,  # [R, G] int64, or None
    token_ids,  # [T] int64
    positions,  # [T] int64
    cache_rows,  # [T] int64
    query_starts,  # [R+1] int32
    kv_lens,  # [R] int32
    block_tables,  # [R, M] int32
    starts,  # [R] int64, as the next ones
    slots,
    lengths,
    anchors,
    generations,
    top_k,
    seeds,
    temperature,  # [R] fp32
    top_p,  # [R] fp32
    num_rows,
    num_tokens,
    mask_token_id,
    slot_stride,
    table_stride,
    drafts_stride,
    PAGE: tl.constexpr,
    DRAFT_BLOCK: tl.constexpr,
    BLOCK_ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    request = tl.program_id(0)
    num_real = tl.load(host_round).to(tl.int32)
    lane = tl.arange(0, BLOCK_ROWS)
    verified = _verified(host_round, state, allocated, lane, lane < num_real).to(tl.int32)
    counts = tl.where(lane < num_real, DRAFT_BLOCK, 0) if DRAFT_BLOCK > 0 else verified + 1
    first = tl.sum(tl.where(lane < request, counts, 0))
    tl.store(query_starts + request, first)
    step = tl.arange(0, BLOCK)
    if request == num_rows:
        # The program behind the last request clears the padding tokens.
        for begin in range(first, num_tokens, BLOCK):
            at = begin + step
            inside = at < num_tokens
            zero = tl.zeros([BLOCK], tl.int64)
            tl.store(token_ids + at, zero, mask=inside)
            tl.store(positions + at, zero, mask=inside)
            tl.store(cache_rows + at, zero, mask=inside)
        return

    real = request < num_real
    row = host_round + (1 + request) * _FIELDS
    slot = tl.load(row + _SLOT, mask=real, other=0)
    start = tl.load(state + slot * _STATE_FIELDS + _START, mask=real, other=0)
    anchor = tl.load(state + slot * _STATE_FIELDS + _ANCHOR, mask=real, other=0)
    count = tl.sum(tl.where(lane == request, counts, 0))
    seen = tl.where(count > 0, start.to(tl.int32) + count, 0)
    tl.store(kv_lens + request, seen)
    tl.store(starts + request, start)
    tl.store(slots + request, slot)
    tl.store(lengths + request, tl.sum(tl.where(lane == request, verified, 0)).to(tl.int64))
    tl.store(anchors + request, anchor)
    tl.store(generations + request, tl.load(row + _GENERATION, mask=real, other=0))
    tl.store(top_k + request, tl.load(row + _TOP_K, mask=real, other=0))
    tl.store(seeds + request, tl.load(row + _SEED, mask=real, other=0))
    warmth = tl.load(row + _TEMPERATURE, mask=real, other=0).to(tl.int32).to(tl.float32, bitcast=True)
    tl.store(temperature + request, warmth)
    mass = tl.load(row + _TOP_P, mask=real, other=0x3F800000).to(tl.int32).to(tl.float32, bitcast=True)
    tl.store(top_p + request, mass)

    pages = tables + slot * slot_stride
    for begin in range(0, count, BLOCK):
        query = begin + step
        inside = query < count
        behind = tl.zeros([BLOCK], tl.int64) + mask_token_id
        if drafts is not None:
            behind = tl.load(drafts + request * drafts_stride + (query - 1), mask=inside & (query > 0), other=0)
        position = start + query
        page = tl.load(pages + position // PAGE, mask=inside, other=0)
        tl.store(token_ids + first + query, tl.where(query == 0, anchor, behind), mask=inside)
        tl.store(positions + first + query, position, mask=inside)
        tl.store(cache_rows + first + query, page * PAGE + position % PAGE, mask=inside)
    # Only what may be read: the rest of the table stays whatever it was.
    num_pages = tl.cdiv(seen, PAGE)
    for begin in range(0, num_pages, BLOCK):
        at = begin + step
        page = tl.load(pages + at, mask=at < num_pages, other=0)
        tl.store(block_tables + request * table_stride + at, page.to(tl.int32), mask=at < num_pages)


def prepare_batch(
    host_round: Tensor,
    state: Tensor,
    tables: Tensor,
    drafts: Tensor | None,
    *,
    page_size: int,
    out: BatchInputs,
    allocated: Tensor | None = None,
    block_width: int = 0,
    mask_token_id: int = 0,
) -> None:
    """host_round [1 + S, fields] int64, see `RoundField`; state [S, fields] int64, see `SlotField`; fills `out`.

    tables [S, M] int64: pages of each slot. `block_width` 0, for the target: a request's queries are its anchor and the
    first of its drafts [>= R, G] int64, as many as LENGTH, its tokens left less one and, where given, `allocated`
    [>= R] int64 allow. Else, for the drafter: its anchor and block_width - 1 times the mask token. `out` may have room
    for more requests and tokens than there are: those are padding.
    """
    num_requests = out.kv_lens.shape[0]
    assert host_round.is_contiguous() and state.is_contiguous()
    assert tables.stride(1) == out.block_tables.stride(1) == 1
    if block_width:
        drafts = None
    assert drafts is None or drafts.stride(1) == 1
    _prepare_kernel[(num_requests + 1,)](
        host_round,
        state,
        allocated,
        tables,
        drafts,
        out.token_ids,
        out.positions,
        out.cache_rows,
        out.query_starts,
        out.kv_lens,
        out.block_tables,
        out.starts,
        out.slots,
        out.lengths,
        out.anchors,
        out.generations,
        out.top_k,
        out.seeds,
        out.temperature,
        out.top_p,
        num_requests,
        out.token_ids.shape[0],
        mask_token_id,
        tables.stride(0),
        out.block_tables.stride(0),
        0 if drafts is None else drafts.stride(0),
        PAGE=page_size,
        DRAFT_BLOCK=block_width,
        # From the capacity, not from the batch: one compiled kernel serves every bucket.
        BLOCK_ROWS=triton.next_power_of_2(host_round.shape[0]),
        BLOCK=128,
        num_warps=4,
    )
