"""SiLU(gate) * up."""

from .reference import silu_mul

__all__ = ["silu_mul"]
