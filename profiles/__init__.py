"""Step curves: raw samples in, a staircase that a scheduler looks up out.

Pure functions on arrays: no model, no device. matplotlib is imported by the function that writes a picture.
"""

from dspark.profiles.conditions import Conditions, ModelShape, check_conditions, contradictions
from dspark.profiles.curve import SCOPES, StepCurve
from dspark.profiles.errors import ProfileError
from dspark.profiles.fit import PredictionError, complete, fit_alike, fit_staircase, prediction_error
from dspark.profiles.measurement import (
    DRAFT,
    DRAFT_KINDS,
    DRAFT_ONE,
    DRAFT_SAMPLED,
    DRAFT_SAMPLED_ONE,
    KINDS,
    ONE_TOKEN_KINDS,
    SAMPLED_KINDS,
    TARGET,
    VERIFY_GREEDY,
    VERIFY_SAMPLED,
    Measurement,
)
from dspark.profiles.profile import Profile, load_profile, profile_from_dict, profile_to_dict, save_profile
from dspark.profiles.shipped import find_profile, shipped_profiles
from dspark.profiles.staircase import Staircase

__all__ = [
    "DRAFT",
    "DRAFT_KINDS",
    "DRAFT_ONE",
    "DRAFT_SAMPLED",
    "DRAFT_SAMPLED_ONE",
    "KINDS",
    "ONE_TOKEN_KINDS",
    "SAMPLED_KINDS",
    "SCOPES",
    "TARGET",
    "VERIFY_GREEDY",
    "VERIFY_SAMPLED",
    "Conditions",
    "Measurement",
    "ModelShape",
    "PredictionError",
    "Profile",
    "ProfileError",
    "Staircase",
    "StepCurve",
    "check_conditions",
    "complete",
    "contradictions",
    "find_profile",
    "fit_alike",
    "fit_staircase",
    "load_profile",
    "prediction_error",
    "profile_from_dict",
    "profile_to_dict",
    "save_profile",
    "shipped_profiles",
]
