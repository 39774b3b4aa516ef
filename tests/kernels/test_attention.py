import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch.testing import assert_close

from dspark.kernels import AttentionLayout, paged_attention
from dspark.kernels.attention.plan import AttentionPiece, plan_attention

TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 2e-2}

# name -> (queries, visible rows) of each request
BATCHES = {
    "one_decode": [(1, 1)],
    "one_decode_page_edge": [(1, 16)],
    "one_decode_past_page": [(1, 17)],
    "one_prefill": [(63, 63)],
    "one_chunk": [(40, 100)],
    "decode": [(1, 15), (1, 16), (1, 17), (1, 200)],
    "even_verification": [(8, 40), (8, 9), (8, 8), (8, 60)],
    "a_block_among_anchors": [(1, 40), (8, 47), (1, 50), (2, 60), (5, 33), (1, 64), (4, 63)],
    "ragged": [(3, 30), (1, 31), (8, 100), (16, 16), (17, 50), (70, 71), (2, 2)],
}


def exact_attention(q, k, v, layout: AttentionLayout, *, scale: float) -> torch.Tensor:
    """One query and one head at a time, over exactly the rows that it sees, in float64."""
    out = torch.empty(q.shape, dtype=torch.float64)
    shared = q.shape[1] // k.shape[1]
    for request, table in enumerate(layout.block_tables.tolist()):
        start, stop = layout.query_starts[request : request + 2].tolist()
        kv_len = int(layout.kv_lens[request])
        for index in range(start, stop):
            seen = kv_len - (stop - index) + 1 if layout.causal else kv_len
            rows = [table[p // layout.page_size] * layout.page_size + p % layout.page_size for p in range(seen)]
            for head in range(q.shape[1]):
                scores = k[rows, head // shared].double() @ q[index, head].double() * scale
                out[index, head] = scores.softmax(0) @ v[rows, head // shared].double()
    return out


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("queries", [7, 40], ids=["block", "long_block"])
def test_window_of_cache_rows(queries: int, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    heads, width = (6, 2), 128
    k, v = (torch.full((500, heads[1], 16), float("nan"), dtype=dtype) for _ in range(2))
    # Full; rows that are none anywhere; a single row; none at all.
    kv_rows = (torch.randperm(499)[: 3 * width] + 1).view(3, width)
    kv_rows = torch.cat((kv_rows, torch.full((1, width), -1)))
    kv_rows[1, torch.rand(width) < 0.4] = -1
    kv_rows[2, torch.arange(width) != 70] = -1
    used = kv_rows[kv_rows >= 0]
    k[used], v[used] = (torch.randn(len(used), heads[1], 16).to(dtype) for _ in range(2))
    layout = AttentionLayout(
        block_tables=torch.zeros(4, 1, dtype=torch.int32),
        query_starts=torch.arange(5, dtype=torch.int32) * queries,
        kv_lens=torch.zeros(4, dtype=torch.int32),
        page_size=16,
        max_query_len=queries,
        max_kv_len=1,
        causal=False,
        kv_rows=kv_rows.int(),
    )
    q = torch.randn(4 * queries, heads[0], 16).to(dtype)
    out = paged_attention(q, k, v, layout, scale=0.3)
    for request, rows in enumerate(kv_rows[:3]):
        rows = rows[rows >= 0]
        own = q[request * queries : (request + 1) * queries].double().view(queries, heads[1], 3, 16)
        weights = (torch.einsum("qhgd,khd->qhgk", own, k[rows].double()) * 0.3).softmax(-1)
        exact = torch.einsum("qhgk,khd->qhgd", weights, v[rows].double()).flatten(1, 2)
        got = out[request * queries : (request + 1) * queries].double()
        assert_close(got, exact, atol=TOLERANCE[dtype], rtol=TOLERANCE[dtype])
    assert not out[3 * queries :].any()


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("queries", [7, 40], ids=["block", "long_block"])
def test_causal_window_whose_last_rows_are_the_queries_own(queries: int, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    width = 128
    k, v = (torch.randn(500, 2, 16).to(dtype) for _ in range(2))
    kv_rows = (torch.randperm(499)[: 3 * width] + 1).view(3, width)
    kv_rows[1, : width - queries][torch.rand(width - queries) < 0.4] = -1
    kv_rows[2, : width - queries] = -1
    layout = AttentionLayout(
        block_tables=torch.zeros(3, 1, dtype=torch.int32),
        query_starts=torch.arange(4, dtype=torch.int32) * queries,
        kv_lens=torch.zeros(3, dtype=torch.int32),
        page_size=16,
        max_query_len=queries,
        max_kv_len=1,
        causal=True,
        kv_rows=kv_rows.int(),
    )
    q = torch.randn(3 * queries, 6, 16).to(dtype)
    out = paged_attention(q, k, v, layout, scale=0.3)
    for index, own in enumerate(q.double().view(-1, 2, 3, 16)):
        rows = kv_rows[index // queries, : width - queries + index % queries + 1]
        rows = rows[rows >= 0]
        weights = (torch.einsum("hgd,khd->hgk", own, k[rows].double()) * 0.3).softmax(-1)
        exact = torch.einsum("hgk,khd->hgd", weights, v[rows].double()).flatten(0, 1)
        assert_close(out[index].double(), exact, atol=TOLERANCE[dtype], rtol=TOLERANCE[dtype])


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("causal", [True, False], ids=["causal", "block"])
@pytest.mark.parametrize("heads", [(6, 2), (4, 4)], ids=["gqa", "mha"])
@pytest.mark.parametrize("shuffled", [True, False], ids=["shuffled_pages", "consecutive_pages"])
@pytest.mark.parametrize("requests", BATCHES.values(), ids=BATCHES.keys())
def test_paged_attention(requests, shuffled: bool, heads: tuple[int, int], causal: bool, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    head_dim, page_size, pages_each = 16, 16, 13
    num_pages = 1 + len(requests) * pages_each
    # Every row that nobody sees is NaN, the padding page included.
    k, v = (torch.full((num_pages * page_size, heads[1], head_dim), float("nan"), dtype=dtype) for _ in range(2))
    pages = np.arange(1, num_pages)
    if shuffled:
        np.random.default_rng(0).shuffle(pages)
    tables = pages.reshape(-1, pages_each)
    for table, (_, kv_len) in zip(tables, requests, strict=True):
        position = np.arange(kv_len)
        rows = table[position // page_size] * page_size + position % page_size
        k[rows] = torch.randn(kv_len, heads[1], head_dim).to(dtype)
        v[rows] = torch.randn(kv_len, heads[1], head_dim).to(dtype)
    counts = [queries for queries, _ in requests]
    layout = AttentionLayout(
        block_tables=torch.from_numpy(tables.astype(np.int32)),
        query_starts=torch.tensor(np.cumsum([0, *counts]), dtype=torch.int32),
        kv_lens=torch.tensor([kv_len for _, kv_len in requests], dtype=torch.int32),
        page_size=page_size,
        max_query_len=max(counts),
        max_kv_len=max(kv_len for _, kv_len in requests),
        causal=causal,
    )
    q = torch.randn(sum(counts), heads[0], head_dim).to(dtype)
    for _layer in range(2):
        out = paged_attention(q, k, v, layout, scale=0.3)
        assert out.dtype == dtype
        exact = exact_attention(q, k, v, layout, scale=0.3)
        assert_close(out.double(), exact, atol=TOLERANCE[dtype], rtol=TOLERANCE[dtype])


def test_padding_behind_a_lone_request_is_zero() -> None:
    """Packed tokens that no request owns, in a batch that needs one call alone."""
    torch.manual_seed(3)
    q, cache = torch.randn(7, 4, 8), torch.randn(64, 2, 8)
    layout = AttentionLayout(
        block_tables=torch.tensor([[1, 2, 3]], dtype=torch.int32),
        query_starts=torch.tensor([0, 4], dtype=torch.int32),
        kv_lens=torch.tensor([9], dtype=torch.int32),
        page_size=4,
        max_query_len=4,
        max_kv_len=9,
    )
    out = paged_attention(q, cache, cache, layout, scale=0.3)
    assert out.shape == q.shape
    assert (out[4:] == 0).all() and (out[:4] != 0).all()


def pieces_of(queries: np.ndarray, kv_lens: np.ndarray) -> list[AttentionPiece]:
    """The calls that requests [R] with so many queries and visible rows are cut into."""
    layout = AttentionLayout(
        block_tables=torch.arange(len(queries) * 20, dtype=torch.int32).view(len(queries), 20),
        query_starts=torch.from_numpy(np.cumsum([0, *queries]).astype(np.int32)),
        kv_lens=torch.from_numpy(kv_lens.astype(np.int32)),
        page_size=16,
        max_query_len=int(queries.max()),
        max_kv_len=int(kv_lens.max()),
    )
    return plan_attention(
        layout, num_tokens=int(queries.sum()), heads_per_kv=3, device=torch.device("cpu"), dtype=torch.float32
    )


@given(
    st.lists(st.tuples(st.sampled_from([0, 1, 1, 2, 3, 5, 8, 16, 17]), st.integers(100, 300)), min_size=1, max_size=12)
)
@example([(8, 130), *[(1, 130)] * 7])
@settings(max_examples=200, deadline=None)
def test_no_request_is_padded_to_twice_its_own_size(requests: list[tuple[int, int]]) -> None:
    """Else one block among many anchors would take as long as a block of each."""
    queries, contexts = np.array(requests).T
    kv_lens = np.where(queries > 0, contexts + queries, 0)
    pieces = pieces_of(queries, kv_lens)
    assert sum(piece.num_requests for piece in pieces) == np.count_nonzero(queries)
    assert sum(piece.num_requests * piece.query_len for piece in pieces) <= 2 * queries.sum()
    assert sum(piece.num_requests * piece.kv_len for piece in pieces) <= 2 * kv_lens.sum()


@pytest.mark.parametrize("kv_lens", [[250, 255, 256, 260], [300, 150, 200], [15, 16, 17], [1, 2]], ids=str)
def test_contexts_within_a_factor_two_share_a_call(kv_lens: list[int]) -> None:
    """Whatever power of two may lie between them."""
    [piece] = pieces_of(np.ones(len(kv_lens), dtype=np.int64), np.array(kv_lens))
    assert piece.num_requests == len(kv_lens) and piece.output_rows is None
