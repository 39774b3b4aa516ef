"""Strategies of hypothesis for step curves and batches, and what scheduling has to find, by trying everything."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
from hypothesis import strategies as st

from dspark.engine.scheduler.survival import HAZARD_LIMIT, HAZARD_UNIT


@st.composite
def round_times(draw: st.DrawFn, most: int = 40) -> np.ndarray:
    """Seconds of batches by size: shelves and jumps, not always rising."""
    widths = draw(st.lists(st.integers(1, 6), min_size=most, max_size=most))
    times = draw(st.lists(st.sampled_from([0.5, 1.0, 1.25, 1.5, 2.0, 3.0]), min_size=most, max_size=most))
    return np.repeat(times, widths)[:most]


STEPS = (0, 1, 300_000, 700_000, 2_000_000, HAZARD_LIMIT)


@st.composite
def batches(draw: st.DrawFn, steps: Sequence[int] = STEPS) -> tuple[np.ndarray, np.ndarray]:
    """hazards [R, G], caps [R] with R <= 4 and G <= 4; ties and dead ends are common."""
    requests, gamma = draw(st.integers(1, 4)), draw(st.integers(1, 4))
    row = st.lists(st.sampled_from(steps), min_size=gamma, max_size=gamma)
    rows = st.lists(row, min_size=requests, max_size=requests)
    hazards = np.minimum(np.cumsum(draw(rows), axis=1), HAZARD_LIMIT).astype(np.int32)
    caps = draw(st.lists(st.integers(-1, gamma + 1), min_size=requests, max_size=requests))
    return hazards, np.array(caps)


def survival_by_definition(hazards: np.ndarray) -> np.ndarray:
    return np.where(hazards >= HAZARD_LIMIT, 0.0, np.exp(-hazards.astype(np.float64) * HAZARD_UNIT))


def all_allocations(hazards: np.ndarray, caps: np.ndarray) -> list[tuple[tuple[int, ...], float]]:
    """Every choice of lengths that may be verified, and its expected accepted tokens."""
    survival = survival_by_definition(hazards)
    choices = []
    for row, cap in zip(survival, caps, strict=True):
        most = 0
        while most < min(cap, len(row)) and row[most] > 0:
            most += 1
        choices.append(range(most + 1))
    return [
        (lengths, sum(float(survival[r, :n].sum()) for r, n in enumerate(lengths)))
        for lengths in itertools.product(*choices)
    ]
