"""What the comparison of draft and target rows gives."""

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, slots=True)
class DistilledRows:
    """One value a draft row."""

    draft_nll: Tensor  # [N] fp32, -log q(label)
    target_nll: Tensor  # [N] fp32, -log p(label)
    distance: Tensor  # [N] fp32, L1 of q - p; 1 - distance / 2 is the probability that a draft of q passes
    hits: Tensor  # [N] bool, the label is q's argmax (lowest id first)
