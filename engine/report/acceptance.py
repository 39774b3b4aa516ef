"""How far blocks are accepted: by position and data set, and by length."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from dspark.calibration import Proportion, Traces, acceptance_by_position
from dspark.engine.report.rounds import full_blocks


@dataclass(frozen=True, slots=True)
class DatasetAcceptance:
    """Conditional acceptance of one data set: of the rounds that reached a position, those that accepted it."""

    dataset: str
    rounds: int
    positions: tuple[Proportion, ...]  # [G]


@dataclass(frozen=True, slots=True)
class AcceptanceLengths:
    """How many rounds accepted how many drafted tokens."""

    source: str
    rounds: int
    counts: tuple[int, ...]  # [G+1], of 0 … G accepted tokens
    mean_accepted: float | None
    left_out: int  # rounds that a stop, a limit or a policy cut short


def dataset_acceptance(traces: Traces) -> list[DatasetAcceptance]:
    """All rounds together first, then each data set that has a name, the largest first."""
    found = [DatasetAcceptance("all rounds", len(traces), tuple(acceptance_by_position(traces)))]
    codes, rounds = np.unique(traces.dataset.codes, return_counts=True)
    for code in codes[np.argsort(-rounds, kind="stable")]:
        name = traces.dataset.names[code]
        if name:
            part = traces.select(traces.dataset.codes == code)
            found.append(DatasetAcceptance(name, len(part), tuple(acceptance_by_position(part))))
    # One data set that is everything is drawn once, under its name.
    return found[1:] if len(found) == 2 and found[1].rounds == len(traces) else found


def traced_lengths(traces: Traces) -> AcceptanceLengths:
    """Of recorded blocks that were verified in full."""
    full = full_blocks(traces)
    counts = np.bincount(full.accepted, minlength=traces.gamma + 1)
    mean = float(full.accepted.mean()) if len(full) else None
    return AcceptanceLengths("recorded full blocks", len(full), tuple(counts.tolist()), mean, len(traces) - len(full))


def decoded_lengths(decode: Mapping[str, Any]) -> AcceptanceLengths:
    """Of all rounds of the last `decode`, under the policy that it ran."""
    spec, policy = decode["spec"], decode["run"]["engine"].get("policy", "unknown")
    counts = tuple(spec["acceptance_histogram"])
    rounds = sum(counts)
    mean = sum(length * n for length, n in enumerate(counts)) / rounds if rounds else None
    return AcceptanceLengths(f"decode, {policy}", rounds, counts, mean, 0)
