"""Attention over the paged cache, for the target (causal) and the draft block (not causal)."""

from dspark.kernels.attention.layout import AttentionLayout
from dspark.kernels.attention.reference import paged_attention

__all__ = ["AttentionLayout", "paged_attention"]
