"""Attention over the paged cache, for the target (causal) and the draft block (not causal)."""

from .layout import AttentionLayout
from .reference import paged_attention

__all__ = ["AttentionLayout", "paged_attention"]
