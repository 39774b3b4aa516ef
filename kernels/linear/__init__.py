"""A matrix product with what stands around it in a layer: the norm before, bias, SiLU or residual behind."""

from dspark.kernels.linear.reference import linear

__all__ = ["linear"]
