"""How far draft distributions are from the target's, and what moves them there."""

from dspark.kernels.distillation.rows import DistilledRows

__all__ = ["DistilledRows"]
