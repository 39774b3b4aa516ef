"""The Markov head as it is trained: every slot behind the text's own token, not behind a drafted one."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dspark.engine.models.drafter_config import DrafterConfig


class TrainedMarkovHead(nn.Module):
    """W1 and W2 [V, r] and, between them, nothing (vanilla), a gate, or a state that runs over the block (rnn)."""

    def __init__(self, config: DrafterConfig) -> None:
        super().__init__()
        rank, hidden, vocab = config.markov_rank, config.backbone.hidden_size, config.backbone.vocab_size
        self.kind = config.markov_head_type
        self.markov_w1 = nn.Embedding(vocab, rank)
        nn.init.normal_(self.markov_w1.weight, std=rank**-0.5)
        self.markov_w2 = nn.Linear(rank, vocab, bias=False)
        # The bias on the logits starts at zero.
        nn.init.zeros_(self.markov_w2.weight)
        if self.kind == "gated":
            self.gate_proj = nn.Linear(hidden + rank, rank)
        if self.kind == "rnn":
            self.joint_proj = nn.Linear(2 * rank + hidden, 3 * rank)

    def forward(self, hidden: Tensor, previous: Tensor) -> tuple[Tensor, Tensor]:
        """hidden [N, G, H], previous [N, G] int64 -> W1 of the tokens before, and what W2 multiplies; [N, G, r]."""
        dtype = hidden.dtype
        token = F.embedding(previous, self.markov_w1.weight).to(dtype)
        if self.kind == "gated":
            weight, bias = self.gate_proj.weight.to(dtype), self.gate_proj.bias.to(dtype)
            return token, F.linear(torch.cat((hidden, token), dim=-1), weight, bias).sigmoid() * token
        if self.kind == "rnn":
            return token, self._run(hidden, token)
        return token, token

    def _run(self, hidden: Tensor, token: Tensor) -> Tensor:
        dtype, rank = hidden.dtype, token.shape[-1]
        weight, bias = self.joint_proj.weight.to(dtype), self.joint_proj.bias.to(dtype)
        # All but the state's part at once for all slots.
        known = F.linear(torch.cat((token, hidden), dim=-1), weight[:, rank:], bias)  # [N, G, 3r]
        state = torch.zeros_like(token[:, 0])
        outputs = []
        for slot in range(token.shape[1]):
            keep, candidate, output = (known[:, slot] + F.linear(state, weight[:, :rank])).chunk(3, dim=-1)
            state = torch.lerp(candidate.tanh(), state, keep.sigmoid())
            outputs.append(output.tanh())
        return torch.stack(outputs, dim=1)
