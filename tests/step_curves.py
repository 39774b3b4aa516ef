"""Step curves with a truth of their own, for whoever plans by one and needs no clock."""

from __future__ import annotations

import numpy as np

from dspark.engine.scheduler.planner import RoundPlanner
from dspark.engine.scheduler.round_time import RoundClock
from dspark.profiles import Staircase, StepCurve


def flat(unit: str, most: int, time_s: float, *, load_unit: str) -> Staircase:
    """A part that always takes as long."""
    return stairs(unit, (most,), (time_s,), load_unit=load_unit)


def stairs(unit: str, buckets: tuple[int, ...], times_s: tuple[float, ...], *, load_unit: str) -> Staircase:
    nothing = (0,) * len(buckets)
    return Staircase(
        unit=unit,
        load_unit=load_unit,
        buckets=np.array(buckets),
        time_s=np.array(times_s),
        p20_s=np.array(times_s),
        p80_s=np.array(times_s),
        reference_load=np.array(nothing),
        load_s=np.array(nothing),
        reference_longest=np.array(nothing),
        longest_s=np.array(nothing),
        reference_requests=np.array(nothing),
        request_s=np.array(nothing),
    )


def step_curve(buckets: tuple[int, ...], times_s: tuple[float, ...], *, gamma: int, draft_s: float = 1e-3) -> StepCurve:
    """Target steps of these times; drafting and verification take the same for any batch."""
    most = buckets[-1]
    verify = flat("requests", most, 1e-4, load_unit="packed tokens")
    return StepCurve(
        target=stairs("packed tokens", buckets, times_s, load_unit="visible KV tokens"),
        draft=flat("requests", most, draft_s, load_unit="visible KV tokens"),
        verify_greedy=verify,
        verify_sampled=verify,
        tokens_per_request=1 + gamma,
        block_width=gamma,
        reference_context_tokens=256,
    )


def make_planner(
    buckets: tuple[int, ...], times_s: tuple[float, ...], *, gamma: int, causal: bool = False, draft_s: float = 1e-3
) -> RoundPlanner:
    """One that believes its curve, whatever this machine's clock says."""
    curve = step_curve(buckets, times_s, gamma=gamma, draft_s=draft_s)
    return RoundPlanner(RoundClock(curve, adapt=False), gamma=gamma, causal=causal)
