"""What a round makes of its verdict: where each request stands after it, and what the host is told."""

from dspark.kernels.commit.fields import NO_STOP, ResultField, SlotField
from dspark.kernels.commit.reference import commit_round

__all__ = ["NO_STOP", "ResultField", "SlotField", "commit_round"]
