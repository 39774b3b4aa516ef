"""What a profile was measured with, and whether that is what is about to run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from dspark.profiles.errors import ProfileError

_AGAIN = (
    "Run `dspark profile` again with the same --target, --drafter, --device and --dtype, or decode without it, by a "
    "--policy that plans nothing, such as fixed:7."
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
        ProfileError: the profile was measured with something else.
    """
    _check_shape("target", recorded.target, present.target)
    if (recorded.drafter is None) != (present.drafter is None):
        without, with_ = ("profile", "run") if recorded.drafter is None else ("run", "profile")
        raise ProfileError(f"the {with_} has a drafter and the {without} has none", _AGAIN)
    if recorded.drafter is not None and present.drafter is not None:
        _check_shape("drafter", recorded.drafter, present.drafter)
    for what, then, now in (
        ("dtype", recorded.dtype, present.dtype),
        ("device", recorded.device, present.device),
        ("device", recorded.device_name, present.device_name),
    ):
        if then != now:
            raise ProfileError(f"the profile was measured with {what} {then}, and this is {now}", _AGAIN)
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


def _check_shape(role: str, recorded: ModelShape, present: ModelShape) -> None:
    for key in sorted({*recorded.shape, *present.shape}):
        then, now = recorded.shape.get(key), present.shape.get(key)
        if then != now:
            raise ProfileError(
                f"the profile is for a {role} of another shape: {key} {then} in {recorded.name}, "
                f"{now} in {present.name}",
                _AGAIN,
            )
