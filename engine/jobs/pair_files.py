"""Files of a work directory that a run replaces: without asking only those of the pair that it is of.

A pair is known by the names under which it was asked for: its weights are not loaded yet, and a drafter that is trained
further is no other one.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from dspark.calibration import CalibrationError, load_calibration, read_provenance
from dspark.engine.errors import UsageError
from dspark.engine.jobs.workdir_names import CALIBRATION, PROFILE
from dspark.engine.models.aliases import NO_DRAFTER
from dspark.profiles import ProfileError, load_profile


@dataclass(frozen=True, slots=True)
class NamedPair:
    """Target and drafter by name or folder; `none` is no drafter, None a name that nobody recorded."""

    target: str | None
    drafter: str | None

    def same_as(self, other: NamedPair) -> bool:
        """Are both the same names, or names of the same folders?"""
        return _same(self.target, other.target) and _same(self.drafter, other.drafter)

    def __str__(self) -> str:
        if self.target is None and self.drafter is None:
            return "models that are not recorded"
        names = (name or "a model that is not recorded" for name in (self.target, self.drafter))
        return " with ".join("no drafter" if name == NO_DRAFTER else name for name in names)


def check_replaced(paths: Sequence[Path], pair: NamedPair) -> None:
    """Refuse to replace a profile, a calibration or traces (`paths`, by their names in a work directory) of others.

    Raises:
        UsageError: one of them is of another pair than `pair`, or cannot be read, so that nobody knows.
    """
    reasons = []
    for path in paths:
        # A link that leads nowhere is a file that cannot be read, and not one that was never made.
        if not os.path.lexists(path):
            continue
        try:
            found = _pair_of(path)
        except (ProfileError, CalibrationError):
            reasons.append(f"{path} would be replaced, and cannot be read to see which models it is of")
            continue
        if not found.same_as(pair):
            reasons.append(f"{path} is of {found}, and would be replaced by one of {pair}")
    if reasons:
        raise UsageError("; ".join(reasons), "Give another --workdir, or --overwrite to replace it.")


def _pair_of(path: Path) -> NamedPair:
    if path.name == PROFILE:
        conditions = load_profile(path).conditions
        return NamedPair(conditions.target.name, conditions.drafter.name if conditions.drafter else NO_DRAFTER)
    provenance = load_calibration(path).provenance if path.name == CALIBRATION else read_provenance(path)
    return NamedPair(provenance.target, provenance.drafter)


def _same(one: str | None, other: str | None) -> bool:
    if one is None or other is None or one == other:
        return one == other
    here, there = Path(one), Path(other)
    return here.is_dir() and there.is_dir() and here.samefile(there)
