"""What a drafter is asked for and what it hands back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from torch import Tensor

    from dspark.engine.batch import PackedBatch
    from dspark.engine.models.kv_cache import KVCache
    from dspark.kernels import NoiseKeys, TopQ
    from dspark.kernels.attention.layout import AttentionLayout


@dataclass(slots=True)
class DraftBlock:
    """One block to draft for each of R requests: `[anchor, mask x (B-1)]` at positions `start .. start+B-1`.

    B is the drafter's `block_width`: G, or G + 1 if the anchor's slot drafts nothing.
    """

    anchors: Tensor  # [R] int64, newest committed token
    starts: Tensor  # [R] int64, its text position = rows of context in the draft cache
    cache_rows: Tensor  # [R*B] int64, cache rows of the block's positions
    attention: AttentionLayout  # not causal, kv_lens = starts + B
    noise: NoiseKeys | None  # positions = starts; None: every row is greedy
    temperature: Tensor  # [R] fp32
    steps: int  # tokens wanted, 1..G; the block is B wide whatever this is
    top_k: int | None = None  # likeliest tokens that sampled rows are drawn from; None: all
    # [R*B] int64, where they are at hand: the block's tokens and text positions.
    token_ids: Tensor | None = None
    positions: Tensor | None = None


@dataclass(slots=True)
class DraftOutput:
    """The tokens of one block and what verification and scheduling need to know about them."""

    tokens: Tensor  # [R, steps] int64
    logits: Tensor | None  # [R, steps, V] fp32, what the tokens were drawn from; None: `top`, or each was certain
    confidence_logits: Tensor  # [R, steps] fp32, acceptance given that the tokens before were accepted
    hidden: Tensor | None = None  # [R, B, H], after the final norm
    top: TopQ | None = None  # [R, steps], q itself where it was cut to few tokens

    @property
    def certain(self) -> bool:
        """Is there no q: each token is what would have been drafted in any case."""
        return self.logits is None and self.top is None


class DraftModel(Protocol):
    """Anything that proposes tokens for the target to verify."""

    @property
    def block_size(self) -> int:
        """Most tokens one block can hold (G)."""

    @property
    def block_width(self) -> int:
        """Cache rows that a block takes behind its context (B): at most G + 1."""

    @property
    def vocab_size(self) -> int:
        """Tokens that it can propose."""

    @property
    def context_limit(self) -> int:
        """Longest context it can draft behind."""

    @property
    def feature_layers(self) -> tuple[int, ...]:
        """Target layers whose features `write_context` reads."""

    def new_cache(self, num_pages: int, page_size: int) -> KVCache:
        """Its own K/V cache, indexed by the same rows as the target's."""

    def write_context(self, features: Tensor, batch: PackedBatch, cache: KVCache) -> None:
        """Take in features [T, n*H] of the tokens that the target has just run."""

    def draft(self, block: DraftBlock, cache: KVCache) -> DraftOutput:
        """Propose `block.steps` tokens a request."""
