"""The target's distribution and its own draw, for plain decoding and for verification alike."""

from dspark.kernels.sampling.reference import sample, target_log_probs
from dspark.kernels.sampling.rows import SamplingRows

__all__ = ["SamplingRows", "sample", "target_log_probs"]
