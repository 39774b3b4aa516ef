"""Whether the times of a profile can be relied on: the one rule of whoever measures them and whoever uses them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dspark.profiles.fit import PredictionError
    from dspark.profiles.profile import Profile

# Two runs in a row that differ by less are steady.
STEADY = 0.05
# A band wider than this share of the median hides the steps of a staircase.
WIDE = 0.2
# A median held-out error beyond this makes the curve a poor guide.
TRUSTED = 0.1

MEASURE_AGAIN = "Measure again on a quiet machine, with more --repeats"


@dataclass(frozen=True, slots=True)
class Doubts:
    """What speaks against the times of a profile, each as half a sentence; None: nothing does."""

    unsteady: str | None
    poor_guide: str | None

    def __bool__(self) -> bool:
        return bool(self.told)

    @property
    def told(self) -> tuple[str, ...]:
        """All there are."""
        return tuple(doubt for doubt in (self.unsteady, self.poor_guide) if doubt)

    @property
    def sentence(self) -> str:
        """What to make of them, if there are any."""
        return f"These times are not to be trusted: {', and '.join(self.told)}. {MEASURE_AGAIN}: `dspark profile`."


def doubts_about(profile: Profile) -> Doubts:
    """By what was recorded when it was measured; what a manifest does not tell raises no doubt."""
    spread, steady = (profile.manifest.get(key) for key in ("spread", "steady_after_warm_up"))
    return Doubts(
        unsteadiness(steady=steady is not False, spread=spread if isinstance(spread, int | float) else 0.0),
        _poor_guide(profile.validation),
    )


def unsteadiness(*, steady: bool, spread: float) -> str | None:
    """`steady`: did warming up end so; `spread`: p20-p80 of a typical point's repeats, as a share of their median."""
    if spread > WIDE:
        return f"repeats differ by {spread:.0%} (p20-p80)"
    return None if steady else f"warming up did not end within {STEADY:.0%}"


def _poor_guide(held_out: PredictionError) -> str | None:
    if held_out.median is None or held_out.p90 is None or held_out.median <= TRUSTED:
        return None
    return f"the curve predicts new points poorly (error {held_out.median:.1%} median, {held_out.p90:.1%} p90)"
