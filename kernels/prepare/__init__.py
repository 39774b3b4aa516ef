"""From what the host says of a round to everything its forward reads: tokens, positions, cache rows, lengths."""

from dspark.kernels.prepare.inputs import BatchInputs, RoundField
from dspark.kernels.prepare.reference import prepare_batch

__all__ = ["BatchInputs", "RoundField", "prepare_batch"]
