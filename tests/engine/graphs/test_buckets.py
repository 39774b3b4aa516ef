"""Sizes of batch that have graphs."""

from __future__ import annotations

import pytest

from dspark.engine.errors import EngineError
from dspark.engine.graphs.buckets import Buckets, context_bucket, prefill_buckets, request_buckets, token_buckets


@pytest.mark.parametrize(("concurrency", "steps"), [(1, 0), (1, 7), (3, 2), (64, 7), (256, 0), (512, 7), (100, 5)])
def test_token_buckets(concurrency: int, steps: int) -> None:
    buckets = token_buckets(concurrency, steps)
    most = concurrency * (1 + steps)
    assert buckets.largest == most
    assert list(buckets.sizes) == sorted(set(buckets.sizes))
    for size in range(1, most + 1):
        bucket = buckets.bucket_for(size)
        assert bucket >= size and bucket in buckets.sizes
        assert not [other for other in buckets.sizes if size <= other < bucket]
    for smaller, larger in zip(buckets.sizes[4:], buckets.sizes[5:], strict=False):
        assert larger - smaller <= max(smaller / 4, 8)


def test_known_token_buckets() -> None:
    assert token_buckets(64, 7).sizes == (
        *(1, 2, 4, 8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320, 384, 448, 512),
    )
    assert token_buckets(100, 6).sizes[-4:] == (448, 512, 640, 700)


@pytest.mark.parametrize(
    ("concurrency", "sizes"), [(1, (1,)), (2, (1, 2)), (6, (1, 2, 4, 6)), (64, (1, 2, 4, 8, 16, 32, 64))]
)
def test_request_buckets(concurrency: int, sizes: tuple[int, ...]) -> None:
    assert request_buckets(concurrency).sizes == sizes


@pytest.mark.parametrize(
    ("most", "sizes"), [(1, (1,)), (64, (64,)), (100, (64, 100)), (1024, (64, 128, 256, 512, 1024))]
)
def test_prefill_buckets_end_with_the_chunk(most: int, sizes: tuple[int, ...]) -> None:
    assert prefill_buckets(most).sizes == sizes


def test_beyond_the_largest() -> None:
    with pytest.raises(EngineError, match=r"a batch of 9 requests .* holds 8") as raised:
        Buckets("requests", (1, 4, 8)).bucket_for(9)
    assert raised.value.remedy


@pytest.mark.parametrize(
    ("context", "longest", "bucket"), [(1, 8208, 1024), (1024, 8208, 1024), (1025, 8208, 8208), (100, 512, 512)]
)
def test_context_bucket(context: int, longest: int, bucket: int) -> None:
    assert context_bucket(context, longest) == bucket
