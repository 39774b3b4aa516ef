"""The Markov head's step: `logits_k += W2 . e(x_{k-1})`, then x_k."""

from dspark.kernels.markov.reference import markov_step

__all__ = ["markov_step"]
