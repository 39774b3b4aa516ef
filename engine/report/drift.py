"""Whether the first half of a trace says the same as the second."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dspark.calibration import Proportion, Traces, acceptance_by_position, survival
from dspark.engine.report.rounds import full_blocks, is_full_block

PERMUTATIONS = 1000


@dataclass(frozen=True, slots=True)
class Half:
    """One half: rounds, and what was expected and accepted of blocks that were verified in full."""

    name: str
    requests: int
    rounds: int
    positions: tuple[Proportion, ...]  # [G], conditional acceptance
    full_blocks: int
    mean_accepted: float | None
    mean_expected: float | None  # sum of the survival over positions, at the temperatures in use


@dataclass(frozen=True, slots=True)
class Drift:
    """Two halves in the order of recording, cut between requests."""

    halves: tuple[Half, Half]
    difference: float | None  # of mean accepted drafts a round, second less first
    p_value: float | None  # share of random splits of the requests that differ as much


def drift(traces: Traces, temperatures: NDArray[np.float64], *, rng: np.random.Generator) -> Drift | None:
    """None with fewer than two requests: their rounds depend on each other, so that nothing can be told.

    The p-value is that of a permutation test which deals whole requests to the halves.
    """
    requests, first_row, index = np.unique(traces.request, return_index=True, return_inverse=True)
    if requests.size < 2:
        return None
    # Requests by when they were first seen; interleaved rounds of a batch stay with their request.
    rank = np.empty(requests.size, dtype=np.int64)
    rank[np.argsort(first_row, kind="stable")] = np.arange(requests.size)
    of_round = rank[index]
    rounds_up_to = np.cumsum(np.bincount(of_round))
    cut = int(np.clip(np.abs(rounds_up_to - len(traces) / 2).argmin() + 1, 1, requests.size - 1))
    halves = (
        _half("first half", traces.select(of_round < cut), temperatures),
        _half("second half", traces.select(of_round >= cut), temperatures),
    )
    one, other = (half.mean_accepted for half in halves)
    if one is None or other is None:
        return Drift(halves, None, None)
    return Drift(halves, other - one, _p_value(traces, of_round, cut, other - one, rng))


def _half(name: str, traces: Traces, temperatures: NDArray[np.float64]) -> Half:
    full = full_blocks(traces)
    accepted = float(full.accepted.mean()) if len(full) else None
    expected = float(survival(full.confidence_logits, temperatures).sum(axis=1).mean()) if len(full) else None
    positions = tuple(acceptance_by_position(traces))
    return Half(name, np.unique(traces.request).size, len(traces), positions, len(full), accepted, expected)


def _p_value(
    traces: Traces, of_round: NDArray[np.int64], cut: int, difference: float, rng: np.random.Generator
) -> float | None:
    whole = is_full_block(traces)
    requests = int(of_round.max()) + 1
    rounds = np.bincount(of_round[whole], minlength=requests)
    accepted = np.bincount(of_round[whole], weights=traces.accepted[whole], minlength=requests)
    differences = []
    for _ in range(PERMUTATIONS):
        order = rng.permutation(requests)
        first, second = order[:cut], order[cut:]
        if rounds[first].sum() and rounds[second].sum():
            means = [accepted[part].sum() / rounds[part].sum() for part in (first, second)]
            differences.append(means[1] - means[0])
    if not differences:
        return None
    # The split that was observed is one of the possible ones.
    as_large = np.abs(differences) >= abs(difference) - 1e-12
    return float((as_large.sum() + 1) / (len(differences) + 1))
