"""The paged attention kernel against its reference: packed lengths, splits, padding, rows that nobody may see."""

import pytest
import torch
from torch.testing import assert_close

from dspark.kernels.attention.layout import AttentionLayout

TOLERANCE = {torch.float32: 2e-5, torch.float16: 4e-3, torch.bfloat16: 2e-2}
NAN = float("nan")

# name -> (queries, visible rows) of each request
SMALL = {
    "one_row": [(1, 1)],
    "page_edges": [(1, 15), (1, 16), (1, 17)],
    "two_splits": [(3, 300), (1, 20)],
    "ragged": [(3, 30), (1, 31), (8, 100), (2, 2), (5, 70)],
    "chunk": [(40, 90)],
    "padding_request": [(2, 9), (0, 0), (1, 5)],
}
LARGE = {
    f"{requests}_requests_{context}": [
        (1 + index % 8, max(context - index % 5, 1 + index % 8)) for index in range(requests)
    ]
    for requests in (1, 7, 63, 100)
    for context in (1, 15, 16, 17, 4095)
} | {"prefill": [(600, 600), (1, 30), (300, 1000)]}
HEADS = {"smollm2": (9, 3, 64), "qwen3": (32, 8, 128), "mha": (4, 4, 24)}


def run(device, requests, heads, causal: bool, dtype, *, padding: int = 3, page_size: int = 16) -> None:
    from dspark.kernels.attention.reference import paged_attention as reference
    from dspark.kernels.attention.triton import paged_attention

    torch.manual_seed(len(requests))
    num_heads, num_kv_heads, head_dim = heads
    pages_each = max(-(-visible // page_size) for _, visible in requests) + 1
    num_pages = 1 + len(requests) * pages_each
    tables = (torch.randperm(num_pages - 1) + 1).view(len(requests), pages_each).int()
    # Rows past a request's visible length, and the padding page, are NaN.
    caches = [torch.full((num_pages * page_size, num_kv_heads, head_dim), NAN, dtype=dtype) for _ in range(2)]
    for table, (_, visible) in zip(tables.long(), requests, strict=True):
        position = torch.arange(visible)
        rows = table[position // page_size] * page_size + position % page_size
        for cache in caches:
            cache[rows] = torch.randn(visible, num_kv_heads, head_dim).to(dtype)
    counts = torch.tensor([queries for queries, _ in requests])
    starts = torch.cat((torch.zeros(1), counts.cumsum(0))).int()
    tokens = int(starts[-1]) + padding
    wide = torch.full((tokens, num_heads + 2, head_dim), NAN, dtype=dtype)
    wide[: tokens - padding, :num_heads] = torch.randn(tokens - padding, num_heads, head_dim).to(dtype)

    def layout(place) -> AttentionLayout:
        visible = torch.tensor([visible for _, visible in requests], dtype=torch.int32)
        bounds = {"max_query_len": int(counts.max()), "max_kv_len": max(1, int(visible.max()))}
        return AttentionLayout(
            tables.to(place), starts.to(place), visible.to(place), page_size=page_size, causal=causal, **bounds
        )

    # The reference has its own way with padding: it sees the requests alone.
    expected = reference(
        wide[: tokens - padding, :num_heads].contiguous(), *caches, layout("cpu"), scale=head_dim**-0.5
    )
    expected = torch.cat((expected, torch.zeros(padding, num_heads, head_dim, dtype=dtype)))
    there = layout(device)
    q = wide.to(device)[:, :num_heads]
    moved = [cache.to(device) for cache in caches]
    actual = paged_attention(q, *moved, there, scale=head_dim**-0.5)
    assert_close(actual.cpu(), expected.nan_to_num(), atol=TOLERANCE[dtype], rtol=TOLERANCE[dtype])
    # The next layer takes the same plan: what splits count must be back at zero, and nothing may depend on timing.
    again = paged_attention(q, *moved, there, scale=head_dim**-0.5)
    assert torch.equal(actual, again)


@pytest.mark.parametrize("causal", [True, False], ids=["causal", "block"])
@pytest.mark.parametrize("requests", SMALL.values(), ids=SMALL.keys())
@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
def test_small_batches(device, requests, causal: bool, dtype: torch.dtype) -> None:
    run(device, requests, (6, 2, 16), causal, dtype)


@pytest.mark.parametrize("heads", HEADS.values(), ids=HEADS.keys())
def test_model_shapes(device, heads) -> None:
    run(device, SMALL["ragged"], heads, True, torch.bfloat16, page_size=32)


def test_long_context(device) -> None:
    run(device, [(2, 4095)], (3, 1, 16), True, torch.bfloat16)


@pytest.mark.gpu
@pytest.mark.parametrize("causal", [True, False], ids=["causal", "block"])
@pytest.mark.parametrize("requests", LARGE.values(), ids=LARGE.keys())
@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("device", ["cuda"], indirect=True)
def test_large_batches(device, requests, causal: bool, dtype: torch.dtype) -> None:
    run(device, requests, HEADS["smollm2"], causal, dtype)


def test_a_query_that_sees_nothing_gets_zeros(device) -> None:
    """Padding tokens may belong to a request of length 0; whatever its block table says, nothing is read."""
    from dspark.kernels.attention.triton import paged_attention

    cache = torch.randn(3 * 16, 2, 16)
    cache[16:32] = NAN
    fields = [torch.tensor([[1, 1], [2, 0]]), torch.tensor([0, 2, 3]), torch.tensor([0, 1])]
    layout = AttentionLayout(*(field.int().to(device) for field in fields), 16, 2, 600)
    out = paged_attention(torch.randn(3, 2, 16).to(device), cache.to(device), cache.to(device), layout, scale=0.25)
    assert not out[:2].any()
    # A lone row has all the weight.
    assert_close(out[2].cpu(), cache[32])


@pytest.mark.parametrize("width", [64, 576])
@pytest.mark.parametrize("requests", [1, 5])
@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
def test_window_of_cache_rows(device, requests: int, width: int, dtype: torch.dtype) -> None:
    from dspark.kernels.attention.reference import paged_attention as reference
    from dspark.kernels.attention.triton import paged_attention

    torch.manual_seed(requests)
    queries, padding, num_kv_heads, head_dim = 7, 2, 2, 16
    kv_rows = (torch.randperm(requests * width) + 1).view(requests, width).int()
    # The last request sees nothing, the one before it a row of its last step only, the others all but some.
    kv_rows[torch.rand(kv_rows.shape) < 0.3] = -1
    kv_rows[-1] = -1
    kv_rows[-2:-1] = -1
    kv_rows[-2:-1, -1] = 1
    caches = [torch.full((1 + requests * width, num_kv_heads, head_dim), NAN, dtype=dtype) for _ in range(2)]
    seen = kv_rows[kv_rows >= 0].long()
    for cache in caches:
        cache[seen] = torch.randn(len(seen), num_kv_heads, head_dim).to(dtype)
    q = torch.randn(requests * queries + padding, 6, head_dim).to(dtype)
    zeros = torch.zeros(requests, 1, dtype=torch.int32)
    starts = torch.arange(requests + 1, dtype=torch.int32) * queries

    def layout(place) -> AttentionLayout:
        fields = (zeros.to(place), starts.to(place), zeros[:, 0].to(place), 16, queries, 1, False)
        return AttentionLayout(*fields, kv_rows=kv_rows.to(place))

    expected = reference(q, *caches, layout("cpu"), scale=0.25)
    moved = [cache.to(device) for cache in caches]
    actual = paged_attention(q.to(device), *moved, layout(device), scale=0.25)
    assert_close(actual.cpu(), expected, atol=TOLERANCE[dtype], rtol=TOLERANCE[dtype])
    assert not actual[(requests - 1) * queries :].any()


@pytest.mark.parametrize("width", [64, 576])
@pytest.mark.parametrize("requests", [1, 5])
@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
def test_causal_window_of_cache_rows(device, requests: int, width: int, dtype: torch.dtype) -> None:
    from dspark.kernels.attention.reference import paged_attention as reference
    from dspark.kernels.attention.triton import paged_attention

    torch.manual_seed(requests)
    queries, padding, num_kv_heads, head_dim = 7, 2, 2, 16
    kv_rows = (torch.randperm(requests * width) + 1).view(requests, width).int()
    # The last request sees nothing but its own block, the others all but some of the rows before theirs.
    context = kv_rows[:, : width - queries]
    context[torch.rand(context.shape) < 0.3] = -1
    context[-1] = -1
    caches = [torch.full((1 + requests * width, num_kv_heads, head_dim), NAN, dtype=dtype) for _ in range(2)]
    seen = kv_rows[kv_rows >= 0].long()
    for cache in caches:
        cache[seen] = torch.randn(len(seen), num_kv_heads, head_dim).to(dtype)
    q = torch.randn(requests * queries + padding, 6, head_dim).to(dtype)
    zeros = torch.zeros(requests, 1, dtype=torch.int32)
    starts = torch.arange(requests + 1, dtype=torch.int32) * queries

    def layout(place) -> AttentionLayout:
        fields = (zeros.to(place), starts.to(place), zeros[:, 0].to(place), 16, queries, 1, True)
        return AttentionLayout(*fields, kv_rows=kv_rows.to(place))

    expected = reference(q, *caches, layout("cpu"), scale=0.25)
    moved = [cache.to(device) for cache in caches]
    actual = paged_attention(q.to(device), *moved, layout(device), scale=0.25)
    assert_close(actual.cpu(), expected, atol=TOLERANCE[dtype], rtol=TOLERANCE[dtype])
    assert not actual[requests * queries :].any()


def test_bounds_above_the_real_lengths(device) -> None:
    """A graph is captured with its bucket's upper bounds; the lengths come later, from the device."""
    from dspark.kernels.attention.triton import paged_attention

    torch.manual_seed(0)
    cache = torch.randn(20 * 16, 2, 16)
    q = torch.randn(2, 4, 16).to(device)
    fields = [torch.tensor([[5, 3], [7, 0]]), torch.tensor([0, 1, 2]), torch.tensor([20, 4])]
    outputs = []
    for bounds in ((1, 20), (8, 8192)):
        layout = AttentionLayout(*(field.int().to(device) for field in fields), 16, *bounds)
        outputs.append(paged_attention(q, cache.to(device), cache.to(device), layout, scale=0.25))
    assert_close(*outputs)


@pytest.mark.gpu
@pytest.mark.parametrize("device", ["cuda"], indirect=True)
def test_replay_equals_eager(device) -> None:
    """Lengths change between replays, bounds do not; split counters survive every replay."""
    from dspark.kernels.attention.triton import paged_attention

    torch.manual_seed(0)
    cache = torch.randn(300 * 16, 3, 64, device=device, dtype=torch.bfloat16)
    q = torch.randn(5, 9, 64, device=device, dtype=torch.bfloat16)
    tables = (torch.randperm(299, device=device) + 1)[:256].view(2, 128).int()
    starts = torch.tensor([0, 1, 4], dtype=torch.int32, device=device)
    visible = torch.tensor([2000, 1500], dtype=torch.int32, device=device)
    layout = AttentionLayout(tables, starts, visible, 16, 8, 2048)
    paged_attention(q, cache, cache, layout, scale=0.125)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = paged_attention(q, cache, cache, layout, scale=0.125)
    for lengths in ([2000, 1500], [10, 3], [2048, 700]):
        visible.copy_(torch.tensor(lengths))
        graph.replay()
        assert torch.equal(captured, paged_attention(q, cache, cache, layout, scale=0.125))
