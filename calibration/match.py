"""Whether a calibration belongs to what is about to run."""

from __future__ import annotations

from dspark.calibration.artefact import Calibration
from dspark.calibration.errors import CalibrationError
from dspark.calibration.sampling import SamplingSettings
from dspark.calibration.traces import Provenance

_REMEDY = "Run `dspark calibrate` again with these settings, or decode without a calibration."


def check_calibration(calibration: Calibration, present: Provenance, *, gamma: int) -> list[str]:
    """Refuse another target, drafter, draft length or acceptance mode; return warnings about the rest.

    Models are compared by fingerprint where both sides have one, else by name.

    Raises:
        CalibrationError: the calibration was made for something else.
    """
    if calibration.gamma != gamma:
        raise CalibrationError(
            f"the calibration is for draft length {calibration.gamma}, and the drafter drafts {gamma}", _REMEDY
        )
    recorded = calibration.provenance
    warnings = [
        *_check_model(
            "target", recorded.target, recorded.target_fingerprint, present.target, present.target_fingerprint
        ),
        *_check_model(
            "drafter", recorded.drafter, recorded.drafter_fingerprint, present.drafter, present.drafter_fingerprint
        ),
    ]
    if recorded.acceptance is None:
        warnings.append("The calibration does not say for which acceptance mode it was made.")
    elif present.acceptance is not None and recorded.acceptance != present.acceptance:
        raise CalibrationError(
            f"the calibration is for acceptance mode {recorded.acceptance}, not {present.acceptance}", _REMEDY
        )
    return warnings


def check_sampling(calibration: Calibration, wanted: SamplingSettings, *, draft_top_k: int | None = None) -> list[str]:
    """Warnings if the calibration was not made with such sampling, or with drafts from so many tokens (None: all)."""
    warnings = []
    if not any(made.same_as(wanted) for made in calibration.sampling):
        made_with = "; ".join(map(str, calibration.sampling)) or "settings that were not recorded"
        warnings.append(f"Sampling with {wanted}, but the calibration was made with {made_with}.")
    recorded = calibration.provenance.draft_top_k
    # Greedy drafts are the likeliest token, whatever the others are.
    if wanted.temperature != 0 and recorded not in (None, draft_top_k or 0):
        warnings.append(
            f"Drafts are drawn from {_tokens(draft_top_k)}, but the calibration was made with drafts from "
            f"{_tokens(recorded)}."
        )
    return warnings


def _tokens(top_k: int | None) -> str:
    return f"the {top_k} likeliest tokens" if top_k else "all tokens"


def _check_model(
    role: str,
    recorded_name: str | None,
    recorded_fingerprint: str | None,
    name: str | None,
    fingerprint: str | None,
) -> list[str]:
    if recorded_fingerprint is not None and fingerprint is not None:
        same, known = recorded_fingerprint == fingerprint, True
    else:
        same, known = recorded_name == name, recorded_name is not None and name is not None
    if not known:
        return [f"The calibration cannot be checked against the {role}: one of the two is not recorded."]
    if not same:
        difference = f"other weights of {name}" if recorded_name == name else f"{recorded_name}, not {name}"
        raise CalibrationError(f"the calibration is for another {role}: {difference}", _REMEDY)
    return []
