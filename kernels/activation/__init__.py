"""SiLU(gate) * up."""

from dspark.kernels.activation.reference import silu_mul

__all__ = ["silu_mul"]
