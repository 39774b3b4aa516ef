"""One figure of the report: its numbers, its words and how it is drawn."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True, slots=True)
class Table:
    """The main numbers of a figure, for those who cannot or do not want to read it."""

    headers: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


@dataclass(frozen=True, slots=True)
class Panel:
    """A figure that can be made."""

    name: str  # of its files and of its numbers in the summary
    title: str
    sentence: str  # what is seen
    alt: str  # what kind of drawing it is; the sentence follows it where the figure cannot be seen
    method: str  # how the numbers come about
    numbers: Mapping[str, Any]
    table: Table
    draw: Callable[[Figure], None]
    size: tuple[float, float] = (8.0, 3.6)  # inches


@dataclass(frozen=True, slots=True)
class MissingPanel:
    """A figure that cannot, and what to do about it."""

    name: str
    title: str
    reason: str
    remedy: str


def shown(value: float | None, spec: str) -> str:
    """A number in a table; a dash where it is not defined."""
    return "–" if value is None else format(value, spec)


def legend(figure: Figure, labelled: Sequence[Any]) -> None:
    """One legend below all of `labelled` Axes, each label once."""
    handles = {
        label: handle for axes in labelled for handle, label in zip(*axes.get_legend_handles_labels(), strict=True)
    }
    figure.legend(handles.values(), handles.keys(), loc="outside lower center", ncols=min(4, max(1, len(handles))))
