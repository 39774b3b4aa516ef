"""Which draft tokens the target accepts, and the token it adds."""

from dspark.kernels.verification.reference import verify
from dspark.kernels.verification.verdict import Verdict

__all__ = ["Verdict", "verify"]
