"""Whether a calibration belongs to what is about to run."""

from __future__ import annotations

from dspark.calibration.artefact import Calibration
from dspark.calibration.errors import CalibrationError
from dspark.calibration.sampling import SamplingSettings
from dspark.calibration.traces import Provenance
from dspark.calibration.verdict import made_worse

_REMEDY = (
    "Run `dspark calibrate` again with these settings, decode by a --policy that reads no confidence, such as fixed:7, "
    "or give another --workdir."
)
_ROLES = ("target", "drafter")


def check_calibration(calibration: Calibration, present: Provenance, *, gamma: int) -> list[str]:
    """Refuse another target, drafter, draft length or acceptance mode; return warnings about the rest.

    Models are compared by fingerprint where both sides have one, else by name.

    Raises:
        CalibrationError: the calibration was made for something else; all that differs is said.
    """
    reasons = mismatches(calibration, present, gamma=gamma)
    if reasons:
        raise CalibrationError("; ".join(reasons), _REMEDY)
    warnings = [
        f"The calibration cannot be checked against the {role}: one of the two is not recorded."
        for role in _ROLES
        if _same_model(role, calibration.provenance, present) is None
    ]
    if calibration.provenance.acceptance is None:
        warnings.append("The calibration does not say for which acceptance mode it was made.")
    if made_worse([position.metrics for position in calibration.positions]):
        warnings.append(
            "The calibration made the confidences worse where it was measured, and is used all the same; without it "
            "every temperature is 1."
        )
    return warnings


def mismatches(calibration: Calibration, present: Provenance, *, gamma: int) -> list[str]:
    """Why a calibration cannot be used for what is present and drafts `gamma` tokens, a clause each."""
    recorded = calibration.provenance
    reasons = []
    for role in _ROLES:
        if _same_model(role, recorded, present) is False:
            then, now = _name(role, recorded), _name(role, present)
            difference = f"other weights of {now}" if then == now else f"{then}, not {now}"
            reasons.append(f"the calibration is for another {role}: {difference}")
    if calibration.gamma != gamma:
        reasons.append(f"the calibration is for draft length {calibration.gamma}, and the drafter drafts {gamma}")
    if None not in (recorded.acceptance, present.acceptance) and recorded.acceptance != present.acceptance:
        reasons.append(f"the calibration is for acceptance mode {recorded.acceptance}, not {present.acceptance}")
    return reasons


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


def _same_model(role: str, recorded: Provenance, present: Provenance) -> bool | None:
    """Are they one model, as far as what is recorded tells; None: it does not."""
    prints = [getattr(side, f"{role}_fingerprint") for side in (recorded, present)]
    then, now = prints if None not in prints else [_name(role, side) for side in (recorded, present)]
    return None if then is None or now is None else then == now


def _name(role: str, side: Provenance) -> str | None:
    name: str | None = getattr(side, role)
    return name
