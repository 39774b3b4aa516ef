"""RoPE, optional per-head norms and the cache write of a packed batch's queries, keys and values."""

from dspark.kernels.rope_cache.reference import rope_and_cache, rotation_tables

__all__ = ["rope_and_cache", "rotation_tables"]
