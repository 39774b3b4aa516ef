"""RMSNorm with an optional residual addition."""

from dspark.kernels.norm.reference import rms_norm

__all__ = ["rms_norm"]
