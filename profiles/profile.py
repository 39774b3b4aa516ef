"""`profile.json`: the step curve, the samples it was fitted to, and how far it can be trusted.

The document is strict JSON (no NaN, no Infinity). Times are seconds.

    format, version         "dspark-profile", 2
    curve                   what is looked up (StepCurve)
      tokens_per_request    most packed tokens of one request: 1 + draft length
      block_width           slots of a draft block, 0 without a drafter
      reference_context_tokens
      target                staircase over packed tokens: forward and main-cache write
      draft                 staircase over requests: a whole greedy block; null without a drafter
      draft_one, draft_sampled, draft_sampled_one
                            staircases over requests: one token of it, and both at temperature 1; null where they were
                            not measured: a block then takes as long as a whole one, or as a greedy one
      verify_greedy, verify_sampled
                            staircases over requests: verification beside the forward, at temperature 0 and 1
      long_context_tokens   past it, a batch's longest request has other attention kernels run; null: one kind
      target_long, draft_long
                            staircases for such batches, null where there is one kind
      each staircase        unit, load_unit, and lists of one length: buckets, time_s, p20_s, p80_s, reference_load,
                            load_s, reference_longest, longest_s, reference_requests, request_s. A count takes the
                            smallest bucket that holds it, and time_s + load_s * (load - reference_load)
                            + longest_s * (longest - reference_longest) + request_s * (requests - reference_requests).
                            The load is visible KV tokens (target, draft) or packed tokens (verify_*), summed over the
                            batch's requests; longest is what its longest request sees; requests are those of the batch
                            (a slope of the target alone: elsewhere they are the bucket); time_s is for full blocks at
                            the reference context
    conditions              what a run must share with the profile (Conditions): target and drafter {name, fingerprint,
                            shape}, dtype, device, device_name; and what only warns: threads, runner, page_size, torch
    measurements            one object a point (Measurement): kind, bucket, num_tokens, num_requests, context_tokens,
                            kv_tokens, held_out, wall_s and device_s (raw samples; device_s null without device events),
                            median_s, p20_s, p80_s
    fit                     per staircase: relative error at its own points {num_points, median, p90, largest}
    validation              the same for the target at points kept from the fit
    notes                   sentences: what was clipped, what was unsteady
    manifest                versions, device, driver, git revision, repeats, spread, clocks and power
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from dspark.profiles.conditions import Conditions
from dspark.profiles.curve import StepCurve
from dspark.profiles.errors import ProfileError
from dspark.profiles.fit import PredictionError
from dspark.profiles.measurement import Measurement
from dspark.profiles.typed_json import RepeatedKey, member, parse
from dspark.profiles.whole_file import whole_file

FORMAT = "dspark-profile"
VERSION = 2
_AGAIN = "Run `dspark profile` again."


@dataclass(frozen=True, slots=True, eq=False)
class Profile:
    """Everything that `profile.json` holds."""

    curve: StepCurve
    conditions: Conditions
    measurements: tuple[Measurement, ...]
    fit: Mapping[str, PredictionError]  # by the staircase's name in the curve
    validation: PredictionError
    notes: tuple[str, ...]
    manifest: Mapping[str, Any]


def profile_to_dict(profile: Profile) -> dict[str, Any]:
    """The JSON document."""
    return {
        "format": FORMAT,
        "version": VERSION,
        "curve": profile.curve.to_dict(),
        "conditions": profile.conditions.to_dict(),
        "fit": {name: asdict(error) for name, error in profile.fit.items()},
        "validation": asdict(profile.validation),
        "notes": list(profile.notes),
        "manifest": dict(profile.manifest),
        "measurements": [measurement.to_dict() for measurement in profile.measurements],
    }


def profile_from_dict(document: Any, *, source: str = "The profile") -> Profile:
    """The reverse.

    Raises:
        ProfileError: it is no profile of this version, or holds what no measurement gives.
    """
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise ProfileError(f"{source} is no profile: it has no format `{FORMAT}`", "Run `dspark profile`.")
    if document.get("version") != VERSION:
        raise ProfileError(
            f"{source} has version {document.get('version')!r} of the format; this dspark reads {VERSION}", _AGAIN
        )
    try:
        profile = Profile(
            curve=StepCurve.from_dict(member(document, "curve", Any)),
            conditions=member(document, "conditions", Conditions),
            measurements=tuple(
                Measurement.from_dict(measurement, f"measurements[{index}]")
                for index, measurement in enumerate(member(document, "measurements", tuple[Any, ...]))
            ),
            fit=member(document, "fit", Mapping[str, PredictionError]),
            validation=member(document, "validation", PredictionError),
            notes=member(document, "notes", tuple[str, ...]),
            manifest=member(document, "manifest", Mapping[str, Any]),
        )
        if (profile.curve.draft is None) != (profile.conditions.drafter is None):
            raise ValueError("only one of `curve.draft` and `conditions.drafter` is null")
        if profile.curve.gamma != profile.conditions.draft_steps:
            raise ValueError("`curve.tokens_per_request` is not 1 + `conditions.draft_steps`")
    except ValueError as error:
        raise ProfileError(f"{source} is damaged: {error}", _AGAIN) from None
    return profile


def save_profile(profile: Profile, path: Path) -> None:
    """Write strict JSON; whoever reads `path` sees all of it or the file before.

    Raises:
        ProfileError: the place cannot be written.
    """
    text = json.dumps(profile_to_dict(profile), indent=2, ensure_ascii=False, allow_nan=False)
    try:
        with whole_file(path) as unfinished:
            # The replacement of what UTF-8 cannot spell, from a path of other bytes, is its escape in JSON.
            unfinished.write_text(text + "\n", encoding="utf-8", errors="backslashreplace")
    except OSError as error:
        raise ProfileError(f"{path} cannot be written: {error.strerror or error}", "Choose another place.") from None


def load_profile(path: Path) -> Profile:
    """Read what `save_profile` wrote; `check_conditions` tells whether it belongs to what is about to run.

    Raises:
        ProfileError: the file is missing or no profile.
    """
    try:
        document = parse(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ProfileError(f"{path} cannot be read: {error.strerror or error}", "Run `dspark profile`.") from None
    except RepeatedKey as error:
        raise ProfileError(f"{path} is damaged: {error}", _AGAIN) from None
    except ValueError:
        raise ProfileError(f"{path} is not strict JSON", _AGAIN) from None
    return profile_from_dict(document, source=str(path))
