"""What the host sends of a round, and the static memory that the device derives from it."""

from __future__ import annotations

from dataclasses import dataclass, fields
from enum import IntEnum

import torch
from torch import Tensor


class RoundField(IntEnum):
    """Columns of a request's row in the round [1 + S, fields] int64.

    Row 0 holds two numbers: of requests, and of drafted tokens to verify in all of them, where the device allocates.
    """

    SLOT = 0  # row of the block tables and of the state
    LENGTH = 1  # drafted tokens to verify, at most
    GENERATION = 2
    TEMPERATURE = 3  # bits of an fp32 number
    TOP_P = 4  # bits of an fp32 number
    TOP_K = 5
    SEED = 6


@dataclass(slots=True)
class BatchInputs:
    """Inputs of one packed batch: T tokens of R requests, padding included.

    Padding tokens are token 0 at position 0 and cache row 0. Requests past the real ones have no queries, see nothing,
    are greedy and have length -1, which verification skips. Requests that have finished have length -1 too, and no
    queries for the target; a draft block keeps its shape and is drafted for them in vain.
    """

    token_ids: Tensor  # [T] int64
    positions: Tensor  # [T] int64
    cache_rows: Tensor  # [T] int64
    query_starts: Tensor  # [R+1] int32
    kv_lens: Tensor  # [R] int32
    block_tables: Tensor  # [R, M] int32, written as far as the visible length reaches
    starts: Tensor  # [R] int64
    slots: Tensor  # [R] int64
    lengths: Tensor  # [R] int64
    anchors: Tensor  # [R] int64
    generations: Tensor  # [R] int64
    temperature: Tensor  # [R] fp32
    top_p: Tensor  # [R] fp32
    top_k: Tensor  # [R] int64
    seeds: Tensor  # [R] int64

    @classmethod
    def zeros(cls, num_requests: int, num_tokens: int, *, max_pages: int, device: torch.device) -> BatchInputs:
        """Memory for the largest batch."""

        def zeros(*shape: int, dtype: torch.dtype = torch.int64) -> Tensor:
            return torch.zeros(shape, dtype=dtype, device=device)

        return cls(
            token_ids=zeros(num_tokens),
            positions=zeros(num_tokens),
            cache_rows=zeros(num_tokens),
            query_starts=zeros(num_requests + 1, dtype=torch.int32),
            kv_lens=zeros(num_requests, dtype=torch.int32),
            block_tables=zeros(num_requests, max_pages, dtype=torch.int32),
            starts=zeros(num_requests),
            slots=zeros(num_requests),
            lengths=zeros(num_requests),
            anchors=zeros(num_requests),
            generations=zeros(num_requests),
            temperature=zeros(num_requests, dtype=torch.float32),
            top_p=zeros(num_requests, dtype=torch.float32),
            top_k=zeros(num_requests),
            seeds=zeros(num_requests),
        )

    def prefix(self, num_requests: int, num_tokens: int) -> BatchInputs:
        """Views of the first requests and tokens."""
        sizes = {"token_ids": num_tokens, "positions": num_tokens, "cache_rows": num_tokens}
        sizes["query_starts"] = num_requests + 1
        views = (getattr(self, field.name)[: sizes.get(field.name, num_requests)] for field in fields(self))
        return BatchInputs(*views)
