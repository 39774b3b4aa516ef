"""What a profile was measured with, and whether that is what is about to run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from dspark.profiles.errors import ProfileError

_AGAIN = (
    "Run `dspark profile` again with the same --target, --drafter, --device and --dtype, decode without it, by a "
    "--policy that plans nothing, such as fixed:7, or give another --workdir."
)


@dataclass(frozen=True, slots=True)
class ModelShape:
    """One model: its name and weights for the reader, its shape for the clock."""

    name: str
    fingerprint: str | None  # None: random weights of this shape
    shape: Mapping[str, int | str | bool]  # everything that decides how long a forward takes


@dataclass(frozen=True, slots=True)
class Conditions:
    """What decides how long a step takes."""

    target: ModelShape
    drafter: ModelShape | None
    dtype: str
    device: str  # "cpu" or "cuda"
    device_name: str
    threads: int | None  # of a CPU
    runner: str  # "eager" or "graphs"
    page_size: int
    concurrency: int
    draft_steps: int  # tokens of a block that are drafted
    torch: str

    def to_dict(self) -> dict[str, Any]:
        """Ready for JSON."""
        return asdict(self)


def check_conditions(recorded: Conditions, present: Conditions) -> list[str]:
    """Refuse a profile of other shapes, dtype or device; return warnings about what may shift its times.

    Raises:
        ProfileError: the profile was measured with something else; all that differs is said.
    """
    reasons = contradictions(recorded, present)
    if reasons:
        raise ProfileError("; ".join(reasons), _AGAIN)
    return [
        f"The profile was measured with {what} {then}, and this is {now}: its times may be off."
        for what, then, now in (
            ("CPU threads:", recorded.threads, present.threads),
            ("the runner", recorded.runner, present.runner),
            ("page size", recorded.page_size, present.page_size),
            ("torch", recorded.torch, present.torch),
        )
        if then != now
    ]


def contradictions(recorded: Conditions, present: Conditions) -> list[str]:
    """Why a profile cannot be used for what is present, a clause each: other shapes, dtype or device."""
    reasons = _shape_contradiction("target", recorded.target, present.target)
    if (recorded.drafter is None) != (present.drafter is None):
        without, with_ = ("profile", "run") if recorded.drafter is None else ("run", "profile")
        reasons.append(f"the {with_} has a drafter and the {without} has none")
    if recorded.drafter is not None and present.drafter is not None:
        reasons += _shape_contradiction("drafter", recorded.drafter, present.drafter)
    # A GPU is another model than a CPU anyway.
    kind = recorded.device if recorded.device != present.device else recorded.device_name
    now_kind = present.device if recorded.device != present.device else present.device_name
    reasons += [
        f"the profile was measured with {what} {then}, and this is {now}"
        for what, then, now in (("dtype", recorded.dtype, present.dtype), ("device", kind, now_kind))
        if then != now
    ]
    return reasons


def _shape_contradiction(role: str, recorded: ModelShape, present: ModelShape) -> list[str]:
    """The first number in which two shapes differ; none if they are the same."""
    if not (recorded.shape.keys() <= present.shape.keys() or recorded.shape.keys() >= present.shape.keys()):
        return [f"the profile is for a {role} of another kind: {recorded.name}, not {present.name}"]
    for key in sorted({*recorded.shape, *present.shape}):
        then, now = recorded.shape.get(key), present.shape.get(key)
        if then != now:
            return [
                f"the profile is for a {role} of another shape: {key} {then} in {recorded.name}, "
                f"{now} in {present.name}"
            ]
    return []
