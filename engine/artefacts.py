"""What earlier commands measured of an engine's pair: the step curve to plan rounds by, and calibrated confidence."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from dspark.calibration import (
    Calibration,
    Provenance,
    SamplingSettings,
    check_calibration,
    check_sampling,
    load_calibration,
)
from dspark.engine.errors import ArtefactError, UsageError
from dspark.engine.profiling.conditions import engine_conditions
from dspark.engine.scheduler.planner import RoundPlanner
from dspark.engine.scheduler.policies import Planned
from dspark.engine.scheduler.round_time import RoundClock
from dspark.profiles import Profile, check_conditions, load_profile

if TYPE_CHECKING:
    from dspark.engine.config import EngineConfig
    from dspark.engine.engine import Engine
    from dspark.engine.requests import SamplingParams


def make_planner(engine: Engine, policy: Planned) -> RoundPlanner:
    """A planner by the profile that the engine's configuration names.

    Raises:
        UsageError: it names none.
        ArtefactError: the profile is of smaller batches.
        ProfileError: the profile cannot be read, or was measured with something else.
    """
    profile = engine.config.profile
    if profile is None:
        raise UsageError(
            f"policy {engine.policy_name} needs to know how long a round takes, and there is no profile",
            "Run `dspark profile` first, or use a policy that plans nothing, such as fixed:K.",
        )
    profile = loaded_profile(profile)
    runner = "eager" if engine.graphs is None else "graphs"
    engine.notes += check_conditions(profile.conditions, engine_conditions(engine, runner=runner))
    curve = profile.curve
    most = curve.max_requests
    if most < engine.concurrency:
        raise ArtefactError(
            too_many_requests(engine.concurrency, most),
            f"Run `dspark profile --concurrency {engine.concurrency}`, lower the concurrency, or use a policy that "
            "plans nothing, such as fixed:K.",
        )
    clock = RoundClock(curve, adapt=engine.config.adapt)
    return RoundPlanner(clock, gamma=engine.gamma, causal=policy.causal, certain=engine.ngram is not None)


def too_many_requests(wanted: int, most: int) -> str:
    """The clause that refuses more requests at once than a profile knows."""
    return f"the profile knows batches of up to {most} requests, and {wanted} are to run at once"


def loaded_profile(profile: Profile | str) -> Profile:
    """The profile itself, or what is in the file of that name.

    Raises:
        ProfileError: the file cannot be read, or is no profile.
    """
    return load_profile(Path(profile)) if isinstance(profile, str) else profile


def loaded_calibration(calibration: Calibration | str) -> Calibration:
    """The calibration itself, or what is in the file of that name.

    Raises:
        CalibrationError: the file cannot be read, or is no calibration.
    """
    return load_calibration(Path(calibration)) if isinstance(calibration, str) else calibration


def confidence_temperatures(engine: Engine) -> np.ndarray:
    """One temperature a draft position, [G]: those of the calibration that the configuration names, else 1.

    Raises:
        CalibrationError: the calibration cannot be read, or was made for something else.
    """
    calibration = engine.config.calibration
    if calibration is None or engine.gamma == 0:
        return np.ones(engine.gamma, dtype=np.float64)
    calibration = loaded_calibration(calibration)
    made_by = engine.fingerprint()
    present = Provenance(
        target=engine.config.target,
        drafter=engine.config.drafter,
        acceptance=engine.config.acceptance,
        target_fingerprint=str(made_by["target"]),
        drafter_fingerprint=str(made_by["drafter"]),
    )
    engine.notes += check_calibration(calibration, present, gamma=engine.gamma)
    return np.asarray(calibration.temperatures, dtype=np.float64)


def sampling_notes(config: EngineConfig, sampling: SamplingParams) -> list[str]:
    """Sentences if the configuration's calibration was not made with such sampling.

    Raises:
        CalibrationError: the calibration cannot be read.
    """
    if config.calibration is None:
        return []
    wanted = SamplingSettings(temperature=sampling.temperature, top_k=sampling.top_k, top_p=sampling.top_p)
    return check_sampling(loaded_calibration(config.calibration), wanted, draft_top_k=config.draft_top_k)
