"""How series are told apart: by colours that the colour-blind tell apart, and by marker and dash for print in grey."""

from __future__ import annotations

from dataclasses import dataclass

from dspark.engine.report.picture import BLUE, INK

# Okabe and Ito's, less the light ones that vanish on white.
VERMILION, GREEN, PURPLE = "#d55e00", "#009e73", "#cc79a7"


@dataclass(frozen=True, slots=True)
class Look:
    """One series in a drawing."""

    color: str
    marker: str
    linestyle: str


_SERIES = (
    Look(INK, "o", "-"),
    Look(BLUE, "s", "-"),
    Look(VERMILION, "^", "--"),
    Look(GREEN, "D", "-."),
    Look(PURPLE, "v", ":"),
    Look(BLUE, "P", "--"),
    Look(VERMILION, "X", "-."),
    Look(GREEN, "*", ":"),
)
MOST_SERIES = len(_SERIES)


def series_look(index: int) -> Look:
    """Of the `index`-th series of a drawing."""
    return _SERIES[index % MOST_SERIES]


def policy_look(name: str) -> Look:
    """One look a policy wherever it is drawn; its family decides the colour."""
    family, _, value = name.partition(":")
    if family == "fixed":
        return Look(VERMILION, {"1": "^", "3": "s"}.get(value, "D"), "--")
    known = {
        "none": Look(INK, "x", ":"),
        "threshold": Look(PURPLE, "v", "-."),
        "threshold-position": Look(PURPLE, "<", "-."),
        "causal": Look(GREEN, "P", "-."),
        "async": Look(BLUE, "o", "-"),
    }
    return known.get(family, Look(INK, "*", "--"))
