"""Which models an artefact is of, and whether several artefacts are of the same ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path

from dspark.engine.report.errors import ReportError

# A name and a fingerprint of the weights; None: not recorded.
Model = tuple[str | None, str | None]

_REMEDY = "Make both of them again with the same models, or keep each pair in a work directory of its own (--workdir)."


@dataclass(frozen=True, slots=True)
class Pair:
    """Target and drafter of one artefact."""

    source: str  # its file name
    target: Model
    drafter: Model
    gamma: int | None
    acceptance: str | None


def check_pairs(pairs: Sequence[Pair], folder: Path) -> list[str]:
    """Refuse artefacts of different models, draft lengths or acceptance modes; return what could not be compared.

    Weights decide where both sides have recorded them, else names.

    Raises:
        ReportError: two artefacts are not of one pair.
    """
    notes = []
    for one, other in combinations(pairs, 2):
        for role in ("target", "drafter"):
            same = _same(getattr(one, role), getattr(other, role))
            if same is None:
                notes.append(f"{one.source} and {other.source} could not be compared: one does not name its {role}.")
            elif not same:
                names = [_described(getattr(pair, role)) for pair in (one, other)]
                raise ReportError(
                    f"{folder}: {one.source} is of {role} {names[0]} and {other.source} of {names[1]}",
                    _REMEDY,
                )
        for what in ("gamma", "acceptance"):
            left, right = getattr(one, what), getattr(other, what)
            if left is not None and right is not None and left != right:
                name = {"gamma": "draft length", "acceptance": "acceptance mode"}[what]
                raise ReportError(
                    f"{folder}: {one.source} is of {name} {left} and {other.source} of {right}",
                    _REMEDY,
                )
    return notes


def _same(one: Model, other: Model) -> bool | None:
    (name, fingerprint), (other_name, other_fingerprint) = one, other
    if fingerprint is not None and other_fingerprint is not None:
        return fingerprint == other_fingerprint
    if name is not None and other_name is not None:
        return name == other_name
    return None


def _described(model: Model) -> str:
    name, fingerprint = model
    return " ".join(part for part in (name, fingerprint and f"({fingerprint})") if part)
