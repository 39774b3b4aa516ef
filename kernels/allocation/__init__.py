"""Which drafted tokens of each request fill the round's budget, decided where their confidence is."""

from dspark.kernels.allocation.reference import allocate_lengths

__all__ = ["allocate_lengths"]
