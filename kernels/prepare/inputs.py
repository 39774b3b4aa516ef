"""What the host sends of a round, and the static memory that the device derives from it."""

from __future__ import annotations

from dataclasses import dataclass, fields
from enum import IntEnum

import torch
from torch import Tensor


class RoundField(IntEnum):
    """Columns of a request's row in the round [1 + S, fields] int64. Row 0 holds the number of requests alone."""

    SLOT = 0  # row of the block tables
    START = 1  # text position of the anchor
    LENGTH = 2  # drafted tokens to verify
    ANCHOR = 3  # token id
    GENERATION = 4
    TEMPERATURE = 5  # bits of an fp32 number
    TOP_P = 6  # bits of an fp32 number
    TOP_K = 7
    SEED = 8


@dataclass(slots=True)
class BatchInputs:
    """Inputs of one packed batch: T tokens of R requests, padding included.

    Padding tokens are token 0 at position 0 and cache row 0. Requests past the real ones have no queries, see nothing,
    are greedy and have length -1, which verification skips.
    """

    token_ids: Tensor  # [T] int64
    positions: Tensor  # [T] int64
    cache_rows: Tensor  # [T] int64
    query_starts: Tensor  # [R+1] int32
    kv_lens: Tensor  # [R] int32
    block_tables: Tensor  # [R, M] int32, written as far as the visible length reaches
    starts: Tensor  # [R] int64
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
        tokens = [torch.zeros(num_tokens, dtype=torch.int64, device=device) for _ in range(3)]
        query_starts = torch.zeros(num_requests + 1, dtype=torch.int32, device=device)
        kv_lens = torch.zeros(num_requests, dtype=torch.int32, device=device)
        block_tables = torch.zeros(num_requests, max_pages, dtype=torch.int32, device=device)
        requests = [torch.zeros(num_requests, dtype=torch.int64, device=device) for _ in range(4)]
        temperature, top_p = (torch.zeros(num_requests, dtype=torch.float32, device=device) for _ in range(2))
        top_k, seeds = (torch.zeros(num_requests, dtype=torch.int64, device=device) for _ in range(2))
        return cls(*tokens, query_starts, kv_lens, block_tables, *requests, temperature, top_p, top_k, seeds)

    def prefix(self, num_requests: int, num_tokens: int) -> BatchInputs:
        """Views of the first requests and tokens."""
        sizes = {"token_ids": num_tokens, "positions": num_tokens, "cache_rows": num_tokens}
        sizes["query_starts"] = num_requests + 1
        views = (getattr(self, field.name)[: sizes.get(field.name, num_requests)] for field in fields(self))
        return BatchInputs(*views)

    @property
    def num_bytes(self) -> int:
        return sum(getattr(self, field.name).nbytes for field in fields(self))
