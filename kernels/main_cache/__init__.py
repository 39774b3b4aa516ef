"""The main cache: what the drafter sees of the committed text, written from the target's features."""

from dspark.kernels.main_cache.reference import write_main_cache

__all__ = ["write_main_cache"]
