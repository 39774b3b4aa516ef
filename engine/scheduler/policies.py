"""Scheduling policies: how many drafted tokens of each request the target verifies."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray

from dspark.engine.errors import UsageError
from dspark.engine.scheduler.arrays import IntArray, RealArray
from dspark.engine.scheduler.survival import log_confidence, log_survival
from dspark.engine.wording import closest, shortened, shown

# Policy -> what stands behind its colon, if it has one.
_VALUES = {"none": "", "fixed": "K", "threshold": "T", "threshold-position": "T", "causal": "", "async": ""}
*_FIRST, _LAST = (f"{name}:{value}" if value else name for name, value in _VALUES.items())
_SPELLINGS = f"{', '.join(_FIRST)} or {_LAST}"


@dataclass(slots=True)
class ScheduleView:
    """What a policy may look at. Caps never depend on drafted tokens."""

    caps: NDArray[np.integer]  # [R], min(drafted, tokens left - 1, context left)
    confidence_logits: RealArray  # [R, G], of the block to be verified; [R, 0] for policies that read none
    temperatures: RealArray  # [G], calibration of each position


class Policy(Protocol):
    """A rule that schedules verification."""

    @property
    def drafts(self) -> bool:
        """Does it need a drafter at all."""

    def steps(self, gamma: int) -> int:
        """Tokens of a block of `gamma` that have to be drafted."""


class LengthPolicy(Policy, Protocol):
    """One that looks at each request of one round alone."""

    @property
    def reads_confidence(self) -> bool:
        """Does it look at confidence logits; else a round need not wait for them."""

    def lengths(self, view: ScheduleView) -> IntArray:
        """Draft tokens that it would verify, [R]; the decode loop holds them to the caps."""


def _leading(passes: NDArray[np.bool_]) -> IntArray:
    """passes [R, G] -> True values before the first False, [R]."""
    return np.asarray(np.logical_and.accumulate(passes, axis=1).sum(axis=1), dtype=np.int64)


@dataclass(frozen=True, slots=True)
class NoDraft:
    """Plain decoding."""

    drafts: ClassVar[bool] = False
    reads_confidence: ClassVar[bool] = False

    def steps(self, gamma: int) -> int:
        return 0

    def lengths(self, view: ScheduleView) -> IntArray:
        return np.zeros(len(view.caps), dtype=np.int64)


@dataclass(frozen=True, slots=True)
class Fixed:
    """The first `length` tokens of every block."""

    length: int
    drafts: ClassVar[bool] = True
    reads_confidence: ClassVar[bool] = False

    def steps(self, gamma: int) -> int:
        return self.length

    def lengths(self, view: ScheduleView) -> IntArray:
        return np.full(len(view.caps), self.length, dtype=np.int64)


@dataclass(frozen=True, slots=True)
class Threshold:
    """Tokens whose survival (all tokens up to and including this one pass) is at least `threshold`.

    `per_position`: tokens before the first one whose own confidence is under it.
    """

    threshold: float
    per_position: bool = False
    drafts: ClassVar[bool] = True
    reads_confidence: ClassVar[bool] = True

    def steps(self, gamma: int) -> int:
        return gamma

    def lengths(self, view: ScheduleView) -> IntArray:
        judged = log_confidence if self.per_position else log_survival
        return _leading(judged(view.confidence_logits, view.temperatures) >= math.log(self.threshold))


@dataclass(frozen=True, slots=True)
class Planned:
    """As many tokens as pay for the time that they take, by the step curve: `async`, or `causal`."""

    causal: bool
    drafts: ClassVar[bool] = True

    def steps(self, gamma: int) -> int:
        return gamma


def parse_policy(text: str, gamma: int | None) -> LengthPolicy | Planned:
    """The policy that `text` spells, for a drafter with blocks of `gamma` tokens.

    Args:
        gamma: 0 = there is no drafter; None = there is one, whose blocks are not known yet.

    Raises:
        UsageError: unknown spelling, a length outside 1..gamma, a threshold outside (0, 1], or a policy that needs a
            drafter without one.
    """
    policy = _spelled(text, gamma)
    if policy.drafts and gamma == 0:
        raise UsageError(
            f"policy {shown(text)} needs a drafter, and there is none", "Name a drafter, or use the policy none."
        )
    return policy


def default_policy(gamma: int, *, plans: bool) -> str:
    """What is used where no policy is named, for a drafter with blocks of `gamma` tokens (0: there is none).

    plans: is there a step curve to plan rounds by.
    """
    if gamma == 0:
        return "none"
    return "async" if plans else f"fixed:{gamma}"


def _spelled(text: str, gamma: int | None) -> LengthPolicy | Planned:
    name, colon, value = text.partition(":")
    if name == "none" and not colon:
        return NoDraft()
    if name in ("causal", "async") and not colon:
        return Planned(causal=name == "causal")
    if name == "fixed" and colon:
        return Fixed(_length(value, gamma, text=text))
    if name == "threshold" and colon:
        return Threshold(_threshold(value, text=text))
    if name == "threshold-position" and colon:
        return Threshold(_threshold(value, text=text), per_position=True)
    raise UsageError(f"policy {shown(text)} is unknown", f"{_guess(name, value)}Use {_SPELLINGS}.")


def _guess(name: str, value: str) -> str:
    """The spelling that is most likely meant by a policy of this name."""
    meant = closest(name.lower(), _VALUES)
    if meant is None:
        return ""
    placeholder = _VALUES[meant]
    return f"Did you mean `{meant}{placeholder and ':' + shortened(value or placeholder)}`? "


def _length(value: str, gamma: int | None, *, text: str) -> int:
    if not re.fullmatch(r"[0-9]{1,9}", value):
        most = f"1 to {gamma}" if gamma else "1 up"
        raise UsageError(f"policy {shown(text)} needs a whole number", f"Write fixed:K with K from {most}.")
    length = int(value)
    if length == 0:
        raise UsageError(f"policy {shown(text)} verifies nothing", "Use the policy none for plain decoding.")
    if gamma and length > gamma:
        raise UsageError(
            f"policy {shown(text)} asks for {length} draft tokens, but this drafter proposes {gamma} at a time",
            f"Use fixed:{gamma} or less.",
        )
    return length


def _threshold(value: str, *, text: str) -> float:
    # Python's float() would also take nan, inf, underscores and blanks.
    if re.fullmatch(r"([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?", value):
        threshold = float(value)
        if 0 < threshold <= 1:
            return threshold
    raise UsageError(
        f"policy {shown(text)} needs a probability", "Give a number above 0 and up to 1, as in threshold:0.5."
    )
