"""The inputs of a packed batch from the host's round and the requests' state, in plain torch."""

import torch
from torch import Tensor

from dspark.kernels.commit.fields import SlotField
from dspark.kernels.prepare.inputs import BatchInputs, RoundField


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
    num_tokens, capacity = out.token_ids.shape[0], out.kv_lens.shape[0]
    real = int(host_round[0, 0])
    rows = host_round[1 : 1 + real]
    slots = rows[:, RoundField.SLOT]
    starts, anchors, left, finished = state[slots][:, : SlotField.IGNORE_EOS].unbind(dim=1)
    lengths = torch.minimum(rows[:, RoundField.LENGTH], left - 1)
    if allocated is not None:
        lengths = torch.minimum(lengths, allocated[:real])
    lengths = torch.where(finished == 0, lengths, -1)
    counts = torch.full_like(lengths, block_width) if block_width else lengths + 1
    total = int(counts.sum())
    assert real <= capacity and total <= num_tokens

    out.query_starts.fill_(total)
    out.query_starts[0] = 0
    out.query_starts[1 : real + 1] = counts.cumsum(0)
    for values, padding in (
        (out.kv_lens, 0),
        (out.starts, 0),
        (out.slots, 0),
        (out.lengths, -1),
        (out.anchors, 0),
        (out.generations, 0),
        (out.temperature, 0),
        (out.top_p, 1),
        (out.top_k, 0),
        (out.seeds, 0),
    ):
        values[real:] = padding
    out.kv_lens[:real] = torch.where(counts > 0, starts + counts, 0)
    out.starts[:real], out.slots[:real], out.lengths[:real] = starts, slots, lengths
    out.anchors[:real], out.generations[:real] = anchors, rows[:, RoundField.GENERATION]
    out.temperature[:real] = _bits_as_float(rows[:, RoundField.TEMPERATURE])
    out.top_p[:real] = _bits_as_float(rows[:, RoundField.TOP_P])
    out.top_k[:real], out.seeds[:real] = rows[:, RoundField.TOP_K], rows[:, RoundField.SEED]
    for row, slot, seen in zip(out.block_tables, slots.tolist(), out.kv_lens.tolist(), strict=False):
        pages = -(-seen // page_size)
        row[:pages] = tables[slot, :pages]

    request = torch.arange(real, device=rows.device).repeat_interleave(counts, output_size=total)
    query = torch.arange(total, device=rows.device) - (counts.cumsum(0) - counts)[request]
    positions = starts[request] + query
    for values in (out.token_ids, out.positions, out.cache_rows):
        values[total:] = 0
    out.positions[:total] = positions
    out.cache_rows[:total] = tables[slots[request], positions // page_size] * page_size + positions % page_size
    behind = torch.full_like(query, mask_token_id)
    if not block_width and drafts is not None:
        behind = drafts[request, (query - 1).clamp(min=0)]
    out.token_ids[:total] = torch.where(query == 0, anchors[request], behind)


def _bits_as_float(bits: Tensor) -> Tensor:
    return bits.to(torch.int32).view(torch.float32)
