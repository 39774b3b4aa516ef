"""Random numbers that depend on (row seed, text position, draft generation, purpose) alone."""

from dspark.kernels.random.reference import ACCEPT, DRAFT, SAMPLE, NoiseKeys, gumbel, philox_words, uniform

__all__ = ["ACCEPT", "DRAFT", "SAMPLE", "NoiseKeys", "gumbel", "philox_words", "uniform"]
