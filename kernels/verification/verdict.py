"""What verification decides."""

from dataclasses import dataclass

from torch import Tensor


@dataclass(slots=True)
class Verdict:
    """What verification says of R requests."""

    accepted: Tensor  # [R] int64, draft tokens that passed, a prefix
    next_token: Tensor  # [R] int64, replacement of the first one that failed, or the bonus token
