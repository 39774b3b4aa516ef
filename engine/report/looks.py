"""How series are told apart: by colours that the colour-blind tell apart, and by marker and dash for print in grey."""

from __future__ import annotations

from dataclasses import dataclass

from dspark.engine.report.picture import BLUE, INK

# Okabe and Ito's, less the light ones that vanish on white.
VERMILION, GREEN, PURPLE = "#d55e00", "#009e73", "#cc79a7"
# Of vermilion, for one family of series.
_LIGHT, _DARK = "#e88a45", "#9c4300"


@dataclass(frozen=True, slots=True)
class Look:
    """One series in a drawing."""

    color: str
    marker: str
    linestyle: str
    linewidth: float = 1.2
    zorder: float = 2.0


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
        shade, marker, dash = {"1": (_LIGHT, "^", ":"), "3": (VERMILION, "s", "--")}.get(value, (_DARK, "D", "-."))
        return Look(shade, marker, dash)
    known = {
        "none": Look(INK, "x", ":"),
        "threshold": Look(PURPLE, "v", "-."),
        "threshold-position": Look(PURPLE, "<", "-."),
        # The two often take the same decisions: the one is a thin line on the other.
        "causal": Look(GREEN, "P", "-", linewidth=0.8, zorder=3.0),
        "async": Look(BLUE, "o", "-", linewidth=2.4),
    }
    return known.get(family, Look(INK, "*", "--"))
