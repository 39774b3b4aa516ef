"""Rotation, cache write and attention in one launch, against the references of both."""

import pytest
import torch
from torch.testing import assert_close

from dspark.kernels.attention.layout import AttentionLayout

NAN = float("nan")
# name -> (queries, visible rows) of each request
REQUESTS = {
    "one": [(1, 1)],
    "decoding": [(1, 17), (1, 300), (1, 64)],
    "across_splits": [(4, 258), (3, 3)],
    "padding_request": [(2, 9), (0, 0), (1, 5)],
    "several_tiles": [(8, 9), (1, 64), (8, 67), (6, 300)],
}


@pytest.mark.parametrize("norm", [True, False], ids=["norm", "plain"])
@pytest.mark.parametrize("causal", [True, False], ids=["causal", "block"])
@pytest.mark.parametrize("requests", REQUESTS.values(), ids=REQUESTS.keys())
@pytest.mark.parametrize("heads", [(6, 2, 16), (9, 3, 24), (8, 2, 128)], ids=str)
def test_one_launch(device, requests, causal: bool, norm: bool, heads) -> None:
    compare(device, requests, heads, causal=causal, norm=norm)


@pytest.mark.parametrize("heads", [(6, 2, 16), (8, 2, 128)], ids=str)
def test_no_split_reads_a_new_row_that_only_another_one_stores(device, heads, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a GPU the splits of a launch run in any order; the interpreter takes them one by one, the last one last."""
    if device.type == "cuda":
        pytest.skip("a GPU chooses the order itself")
    from triton.runtime.interpreter import InterpreterBuilder

    own = InterpreterBuilder.set_grid_idx

    def last_split_first(builder, request: int, tile: int, split: int) -> None:
        own(builder, request, tile, builder.grid_dim[2] - 1 - split)

    monkeypatch.setattr(InterpreterBuilder, "set_grid_idx", last_split_first)
    # The first of two tiles sees some of eight new rows, with the end of a split among them.
    compare(device, [(8, visible) for visible in (67, 131, 133, 197)], heads, causal=True, norm=False)


def compare(device, requests, heads, *, causal: bool, norm: bool) -> None:
    from dspark.kernels.attention.reference import rope_attention as reference
    from dspark.kernels.attention.triton import rope_attention
    from dspark.kernels.rope_cache import rotation_tables

    torch.manual_seed(1)
    dtype, page_size, padding = torch.bfloat16, 16, 2
    num_heads, kv_heads, dim = heads
    pages = max(-(-visible // page_size) for _, visible in requests) + 1
    tables = (torch.randperm(len(requests) * pages) + 1).view(len(requests), pages)
    caches = [torch.full(((1 + tables.numel()) * page_size, kv_heads, dim), NAN, dtype=dtype) for _ in range(2)]
    cache_rows, positions = [], []
    for table, (queries, visible) in zip(tables, requests, strict=True):
        place = torch.arange(visible)
        rows = table[place // page_size] * page_size + place % page_size
        for cache in caches:
            cache[rows[: visible - queries]] = torch.randn(visible - queries, kv_heads, dim).to(dtype)
        cache_rows.append(rows[visible - queries :])
        positions.append(place[visible - queries :])
    cache_rows, positions = torch.cat(cache_rows), torch.cat(positions)
    counts = torch.tensor([queries for queries, _ in requests])
    starts = torch.cat((torch.zeros(1), counts.cumsum(0))).int()
    tokens = len(cache_rows)
    qkv = torch.randn(tokens + padding, (num_heads + 2 * kv_heads) * dim).to(dtype)
    cos, sin = rotation_tables(torch.rand(512, dim // 2) * 6)
    gains = {name: torch.randn(dim).to(dtype) for name in ("q_norm", "k_norm")} if norm else {}

    def run(op, place, rows: int):
        visible = torch.tensor([visible for _, visible in requests], dtype=torch.int32)
        layout = AttentionLayout(
            tables.int().to(place), starts.to(place), visible.to(place), page_size=page_size, causal=causal,
            max_query_len=int(counts.max()), max_kv_len=int(visible.max()),
        )  # fmt: skip
        behind = torch.zeros(rows - tokens, dtype=torch.int64)
        k, v = (cache.to(place, copy=True) for cache in caches)
        out = op(
            qkv[:rows].to(place), cos.to(place), sin.to(place), layout, k_cache=k, v_cache=v,
            cache_rows=torch.cat((cache_rows, behind)).to(place), num_heads=num_heads, num_kv_heads=kv_heads,
            scale=dim**-0.5, angle_rows=torch.cat((positions, behind)).to(place),
            **{name: gain.to(place) for name, gain in gains.items()},
        )  # fmt: skip
        return out.cpu(), k.cpu()[page_size:], v.cpu()[page_size:]

    # The reference has its own way with padding: it sees the requests alone.
    expected, *stored = run(reference, "cpu", tokens)
    actual, *written = run(rope_attention, device, tokens + padding)
    assert_close(actual[:tokens], expected, atol=2e-2, rtol=2e-2)
    assert (actual[tokens:] == 0).all()
    for ours, theirs in zip(written, stored, strict=True):
        assert_close(ours, theirs, atol=2e-2, rtol=2e-2, equal_nan=True)
