"""Top-k and top-p without sorting: a bracket of order-preserving keys narrows to the last token kept."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from dspark.kernels.sampling.rows import SamplingRows
from dspark.kernels.sampling.scans import order_key, order_key_value

_LAST_ID = tl.constexpr(2147483647)
_LOWEST_KEY = tl.constexpr(-2147483648)
_BLOCK = 4096


@triton.jit
def _weigh(row_ptr, vocab_size, key1, key2, key3, largest, rate, BY_MASS: tl.constexpr, BLOCK: tl.constexpr):
    """Counts of the tokens whose key is at least key1, key2, key3, and their masses (or counts again)."""
    lanes = tl.arange(0, BLOCK)
    count1 = tl.zeros([BLOCK], tl.int32)
    count2 = tl.zeros([BLOCK], tl.int32)
    count3 = tl.zeros([BLOCK], tl.int32)
    mass1 = tl.zeros([BLOCK], tl.float32)
    mass2 = tl.zeros([BLOCK], tl.float32)
    mass3 = tl.zeros([BLOCK], tl.float32)
    for start in range(0, vocab_size, BLOCK):
        ids = start + lanes
        logit = tl.load(row_ptr + ids, mask=ids < vocab_size, other=float("-inf"))
        key = tl.where(ids < vocab_size, order_key(logit), _LOWEST_KEY)
        count1 += (key >= key1).to(tl.int32)
        count2 += (key >= key2).to(tl.int32)
        count3 += (key >= key3).to(tl.int32)
        if BY_MASS:
            weight = tl.exp((logit - largest) * rate)
            mass1 += tl.where(key >= key1, weight, 0.0)
            mass2 += tl.where(key >= key2, weight, 0.0)
            mass3 += tl.where(key >= key3, weight, 0.0)
    n1, n2, n3 = tl.sum(count1), tl.sum(count2), tl.sum(count3)
    if BY_MASS:
        return n1, n2, n3, tl.sum(mass1), tl.sum(mass2), tl.sum(mass3)
    return n1, n2, n3, n1.to(tl.float32), n2.to(tl.float32), n3.to(tl.float32)


@triton.jit
def _narrow(row_ptr, vocab_size, low, high, wanted, largest, rate, BY_MASS: tl.constexpr, BLOCK: tl.constexpr):
    """(high, weight of keys >= high): the last token kept has the largest key below high.

    Throughout, keys >= low weigh at least `wanted` and keys >= high less; keys are int64, whose differences fit.
    """
    low_count = vocab_size
    high_count = 0
    high_mass = 0.0
    while (high - low > 1) & (low_count - high_count > 1):
        step = (high - low) // 4
        key1 = low + tl.maximum(step, 1)
        key2 = tl.maximum(low + (high - low) // 2, key1)
        key3 = tl.maximum(high - tl.maximum(step, 1), key2)
        n1, n2, n3, m1, m2, m3 = _weigh(
            row_ptr, vocab_size, key1.to(tl.int32), key2.to(tl.int32), key3.to(tl.int32), largest, rate, BY_MASS, BLOCK
        )
        enough1 = m1 >= wanted
        enough2 = m2 >= wanted
        enough3 = m3 >= wanted
        next_low = tl.where(enough3, key3, tl.where(enough2, key2, tl.where(enough1, key1, low)))
        low_count = tl.where(enough3, n3, tl.where(enough2, n2, tl.where(enough1, n1, low_count)))
        next_high = tl.where(enough3, high, tl.where(enough2, key3, tl.where(enough1, key2, key1)))
        high_count = tl.where(enough3, high_count, tl.where(enough2, n3, tl.where(enough1, n2, n1)))
        high_mass = tl.where(enough3, high_mass, tl.where(enough2, m3, tl.where(enough1, m2, m1)))
        low = next_low
        high = next_high
    return high, high_mass


@triton.jit
def _largest_below(row_ptr, vocab_size, high, BLOCK: tl.constexpr):
    """(the largest key below high, how many tokens have it)."""
    lanes = tl.arange(0, BLOCK)
    largest = tl.full([BLOCK], _LOWEST_KEY, tl.int32)
    count = tl.zeros([BLOCK], tl.int32)
    for start in range(0, vocab_size, BLOCK):
        ids = start + lanes
        key = order_key(tl.load(row_ptr + ids, mask=ids < vocab_size, other=float("-inf")))
        key = tl.where((ids < vocab_size) & (key < high), key, _LOWEST_KEY)
        count = tl.where(key > largest, 1, count + (key == largest).to(tl.int32))
        largest = tl.maximum(largest, key)
    top = tl.max(largest)
    return top, tl.sum(tl.where(largest == top, count, 0))


@triton.jit
def _tied_id(row_ptr, vocab_size, threshold, room, BLOCK: tl.constexpr):
    """The id of the room-th token whose key is the threshold."""
    lanes = tl.arange(0, BLOCK)
    found = 0
    cutoff = -1
    start = 0
    while (start < vocab_size) & (found < room):
        ids = start + lanes
        key = order_key(tl.load(row_ptr + ids, mask=ids < vocab_size, other=float("-inf")))
        tied = ((key == threshold) & (ids < vocab_size)).to(tl.int32)
        rank = found + tl.cumsum(tied, 0)
        cutoff = tl.maximum(cutoff, tl.max(tl.where((tied > 0) & (rank <= room), ids, -1)))
        found += tl.sum(tied)
        start += BLOCK
    return cutoff


@triton.jit
def top_k_limits(row_ptr, vocab_size, TOP: tl.constexpr, BLOCK: tl.constexpr):
    """(threshold, cutoff) that leave the TOP largest logits of a row, the lower ids among equals."""
    # All there are: whatever a NaN's key is, it lies between.
    low = tl.full([], _LOWEST_KEY, tl.int64)
    high = tl.full([], _LAST_ID, tl.int64) + 1
    wanted = tl.full([], TOP, tl.float32)
    end, above = _narrow(row_ptr, vocab_size, low, high, wanted, 0.0, 1.0, False, BLOCK)
    threshold, tied = _largest_below(row_ptr, vocab_size, end, BLOCK)
    room = (wanted - above).to(tl.int32)
    cutoff = tl.full([], _LAST_ID, tl.int32)
    if room < tied:
        cutoff = _tied_id(row_ptr, vocab_size, threshold, room, BLOCK)
    return threshold, cutoff


@triton.jit
def _limits_kernel(
    logits_ptr,  # [T, V] fp32
    starts_ptr,  # [R+1], the row that decides a request's first token; None: request r has row r
    lengths_ptr,  # [R] int64, or None
    temperature_ptr,  # [R] fp32
    top_k_ptr,  # [R] int64
    top_p_ptr,  # [R] fp32
    limits_ptr,  # [R, STEPS, 2] int32, threshold and cutoff
    vocab_size,
    row_stride,
    STEPS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    step = tl.program_id(0)
    request = tl.program_id(1)
    row = request.to(tl.int64)
    if starts_ptr is not None:
        row = tl.load(starts_ptr + request).to(tl.int64) + step
    length = STEPS - 1
    if lengths_ptr is not None:
        length = tl.load(lengths_ptr + request).to(tl.int32)
    if step > length:
        return
    row_ptr = logits_ptr + row * row_stride
    temperature = tl.load(temperature_ptr + request)
    top_k = tl.load(top_k_ptr + request)
    top_p = tl.load(top_p_ptr + request)
    by_count = (top_k > 0) & (top_k < vocab_size)
    threshold = tl.full([], _LOWEST_KEY, tl.int32)
    cutoff = tl.full([], _LAST_ID, tl.int32)
    if (temperature > 0) & (by_count | (top_p < 1)):
        lanes = tl.arange(0, BLOCK)
        rate = 1.0 / temperature
        lane_top = tl.full([BLOCK], float("-inf"), tl.float32)
        lane_low = tl.full([BLOCK], float("inf"), tl.float32)
        for start in range(0, vocab_size, BLOCK):
            mask = start + lanes < vocab_size
            logit = tl.load(row_ptr + start + lanes, mask=mask, other=float("-inf"))
            lane_top = tl.maximum(lane_top, logit)
            lane_low = tl.where(mask, tl.minimum(lane_low, logit), lane_low)
        largest = tl.max(lane_top)
        # Of the tokens at the threshold, `room` stay; those before it and they weigh `mass`.
        room = cutoff
        tied = cutoff
        low = order_key(tl.min(lane_low)).to(tl.int64)
        high = order_key(largest).to(tl.int64) + 1
        if by_count:
            wanted = top_k.to(tl.float32)
            end, above = _narrow(row_ptr, vocab_size, low, high, wanted, largest, rate, False, BLOCK)
            threshold, tied = _largest_below(row_ptr, vocab_size, end, BLOCK)
            room = (wanted - above).to(tl.int32)
        if top_p < 1:
            _, _, _, mass, above, _ = _weigh(
                row_ptr, vocab_size, threshold, threshold + 1, threshold + 1, largest, rate, True, BLOCK
            )
            if room < tied:
                mass = above + room * ((mass - above) / tied)
            wanted = tl.maximum(top_p * mass, 1e-30)
            # Fewer than V tokens lie below this logit, so that all of them together weigh less than 1 - top_p.
            floor = largest - temperature * tl.log(vocab_size / (1.0 - top_p))
            low = tl.maximum(threshold.to(tl.int64), order_key(floor).to(tl.int64))
            end, above = _narrow(row_ptr, vocab_size, low, high, wanted, largest, rate, True, BLOCK)
            last_key, count = _largest_below(row_ptr, vocab_size, end, BLOCK)
            weight = tl.exp((order_key_value(last_key) - largest) * rate)
            # As a float it cannot overflow where the weight is next to nothing.
            needed = tl.minimum(tl.maximum(tl.ceil((wanted - above) / weight), 1.0), count.to(tl.float32))
            room = tl.minimum(needed.to(tl.int32), tl.where(last_key == threshold, room, count))
            threshold = last_key
            tied = count
        if room < tied:
            cutoff = _tied_id(row_ptr, vocab_size, threshold, room, BLOCK)
    slot = request * STEPS + step
    tl.store(limits_ptr + 2 * slot, threshold)
    tl.store(limits_ptr + 2 * slot + 1, cutoff)


def truncation_limits(
    logits: Tensor, rows: SamplingRows, *, starts: Tensor | None, lengths: Tensor | None, max_length: int
) -> Tensor | None:
    """logits [T, V] -> [R, 1 + max_length, 2] int32, key and last id of what truncation leaves; None: it leaves all."""
    if not rows.any_truncated:
        return None
    num_requests = rows.temperature.shape[0]
    steps = max_length + 1
    limits = torch.empty(num_requests, steps, 2, dtype=torch.int32, device=logits.device)
    vocab_size = logits.shape[-1]
    _limits_kernel[(steps, num_requests)](
        logits,
        starts,
        lengths,
        rows.temperature,
        rows.top_k,
        rows.top_p,
        limits,
        vocab_size,
        logits.stride(0),
        STEPS=steps,
        BLOCK=min(_BLOCK, max(128, triton.next_power_of_2(vocab_size))),
        num_warps=16,
    )
    return limits
