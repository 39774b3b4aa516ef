"""Memory that every graph of an engine reads and writes: it stays where it is for as long as the engine lives."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from dspark.kernels import BatchInputs, ResultField, RoundField, SlotField, TopQ


@dataclass(frozen=True, slots=True)
class GraphSizes:
    """The largest batches that an engine's graphs hold."""

    concurrency: int  # S
    steps: int  # drafted tokens a request at most, 0 without a drafter
    block_width: int  # slots of a draft block (B), 0 without a drafter
    vocab_size: int
    max_pages: int  # M, of one request
    lengths: tuple[int, ...] = ()  # of the blocks that rounds are known to choose from; none: whole ones
    keeps_q: bool = True  # False: drafted tokens are certain, and have no logits
    draft_top_k: int | None = None  # tokens that q is cut to (K); None: it is kept in full

    @property
    def max_tokens(self) -> int:
        """Packed tokens of a round at most."""
        return self.concurrency * (1 + self.steps)

    def captured_with(self, steps: int) -> list[int]:
        """Tokens of the blocks whose graphs are captured together once one of `steps` tokens is wanted, falling.

        The others come soon, when nobody wants to wait for them.
        """
        return sorted({steps, self.steps, *self.lengths}, reverse=True)

    @property
    def row_fields(self) -> int:
        """Numbers that the device keeps of a request beside its pages and its drafted tokens."""
        return len(SlotField) + len(RoundField) + len(ResultField) + 1

    @property
    def q_bytes(self) -> int:
        """Of one drafted token's q: a logit of every token, or an id and a log-probability of each that is kept."""
        if not self.keeps_q:
            return 0
        return 4 * self.vocab_size if self.draft_top_k is None else 8 * self.draft_top_k

    def report(self) -> dict[str, int]:
        """Bytes by name, before anything is allocated."""
        rows = self.concurrency * self.steps
        inputs = 2 * self.concurrency * (4 * self.max_pages + 80) + 24 * (self.max_tokens + rows)
        return {
            "target logits": 4 * self.max_tokens * self.vocab_size,
            "draft logits (q)": rows * self.q_bytes,
            "graph inputs": inputs + 8 * self.concurrency * (self.max_pages + self.row_fields + self.steps),
        }


class StaticMemory:
    """Inputs, of which graphs read prefixes, and outputs, which lie outside the graphs' pool."""

    def __init__(self, sizes: GraphSizes, device: torch.device) -> None:
        self.sizes = sizes
        requests, steps = sizes.concurrency, sizes.steps

        def zeros(*shape: int, dtype: torch.dtype = torch.int64) -> torch.Tensor:
            return torch.zeros(shape, dtype=dtype, device=device)

        self.tables = zeros(requests, sizes.max_pages)  # [S, M], pages of each slot
        self.state = zeros(requests, len(SlotField))  # where each slot's request stands
        self.host_round = zeros(1 + requests, len(RoundField))  # what the host says of a round
        self.allocated = zeros(requests)  # drafted tokens to verify, where the device allocates
        self.target_inputs = BatchInputs.zeros(requests, sizes.max_tokens, max_pages=sizes.max_pages, device=device)
        self.logits = zeros(sizes.max_tokens, sizes.vocab_size, dtype=torch.float32)  # [T, V]
        # [S, fields + steps], the drafted tokens last: one copy brings a round to the host.
        self.result = zeros(requests, len(ResultField) + steps)
        self.drafts = self.result[:, len(ResultField) :] if steps else None  # [S, steps]
        self.draft_logits: torch.Tensor | None = None  # [S, steps, V], room for the q of `q_of`
        self.draft_top: TopQ | None = None  # [S, steps], the q where it is cut to few tokens
        if steps and sizes.draft_top_k is not None:
            self.draft_top = TopQ.uniform(requests, steps, count=sizes.draft_top_k, device=device)
        elif steps and sizes.keeps_q:
            self.draft_logits = zeros(requests, steps, sizes.vocab_size, dtype=torch.float32)
        if steps:
            draft_tokens = requests * sizes.block_width
            self.draft_inputs = BatchInputs.zeros(requests, draft_tokens, max_pages=sizes.max_pages, device=device)
            self.confidence_logits = zeros(requests, steps, dtype=torch.float32)  # [S, steps]

    def q_of(self, num_requests: int, steps: int) -> tuple[torch.Tensor | None, TopQ | None]:
        """Logits [R, steps, V] or the few tokens [R, steps] that blocks of `steps` tokens are drawn from.

        Logits of shorter blocks lie as close as those of whole ones, from the start of the same memory: one request's
        q is elsewhere in blocks of another length, so a block is verified by the length that it was drafted with.
        """
        logits, top = self.draft_logits, self.draft_top
        if logits is not None:
            vocab_size = self.sizes.vocab_size
            logits = logits.view(-1)[: num_requests * steps * vocab_size].view(num_requests, steps, vocab_size)
        return logits, None if top is None else top[:num_requests, :steps]
