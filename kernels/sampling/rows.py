"""The sampling settings of a batch."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(slots=True)
class SamplingRows:
    """How each request samples; the flags are known on the host, so that choosing a path needs no synchronisation."""

    temperature: Tensor  # [R] fp32, 0 = greedy
    top_k: Tensor  # [R] int64, 0 = off
    top_p: Tensor  # [R] fp32, 1 = off
    seeds: Tensor  # [R] int64
    all_greedy: bool
    any_truncated: bool

    @classmethod
    def of(
        cls,
        temperature: Sequence[float],
        *,
        top_k: Sequence[int],
        top_p: Sequence[float],
        seeds: Sequence[int],
        device: torch.device | str = "cpu",
    ) -> "SamplingRows":
        """One value a request; truncation of a greedy row changes nothing, so only sampled rows set `any_truncated`."""
        # The flags come from the rounded values, so that they agree with what the rows themselves say.
        degrees = torch.tensor(temperature, dtype=torch.float32)
        counts = torch.tensor(top_k, dtype=torch.int64)
        masses = torch.tensor(top_p, dtype=torch.float32)
        return cls(
            temperature=degrees.to(device),
            top_k=counts.to(device),
            top_p=masses.to(device),
            seeds=torch.tensor(seeds, dtype=torch.int64, device=device),
            all_greedy=not bool(degrees.any()),
            any_truncated=bool(((degrees > 0) & ((counts > 0) | (masses < 1))).any()),
        )

    def take(self, rows: Tensor) -> "SamplingRows":
        """rows [n] int64 -> the settings of those requests, the flags kept as they are (they may only be too wide)."""
        return SamplingRows(
            temperature=self.temperature[rows],
            top_k=self.top_k[rows],
            top_p=self.top_p[rows],
            seeds=self.seeds[rows],
            all_greedy=self.all_greedy,
            any_truncated=self.any_truncated,
        )
