"""The Markov head's weights, and what it multiplies into W2 at each draft position."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import embedding as lookup


@dataclass(slots=True)
class MarkovHead:
    """vanilla: e = W1[previous token]. gated: sigmoid(gate([h ; e])) * e. rnn: a gated state over the positions."""

    kind: str
    w1: Tensor  # [V, r]
    w2: Tensor  # [V, r]
    weight: Tensor | None = None  # gated [r, H + r], rnn [3r, 2r + H]
    bias: Tensor | None = None  # gated [r], rnn [3r]

    def initial_state(self, num_rows: int) -> Tensor | None:
        """State before the first position, [R, r]; None for heads that carry none."""
        if self.kind != "rnn":
            return None
        return self.w1.new_zeros(num_rows, self.w1.shape[1])

    def advance(self, state: Tensor | None, hidden: Tensor, previous: Tensor) -> tuple[Tensor | None, Tensor | None]:
        """state [R, r], hidden [R, H], previous [R] int64 -> the next state, and what W2 multiplies [R, r].

        A vanilla head answers None: the Markov step gathers W1[previous] itself.
        """
        if self.weight is None or self.bias is None:
            return None, None
        token = lookup(previous, self.w1)
        hidden = hidden.to(token.dtype)
        if state is None:
            gate = torch.addmm(self.bias, torch.cat((hidden, token), dim=1), self.weight.t())
            return None, gate.sigmoid_().mul_(token)
        joint = torch.addmm(self.bias, torch.cat((state, token, hidden), dim=1), self.weight.t())
        keep, candidate, output = joint.chunk(3, dim=1)
        return torch.lerp(candidate.tanh(), state, keep.sigmoid()), output.tanh()
