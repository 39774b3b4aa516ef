"""The page: one HTML file that needs nothing beside it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import TYPE_CHECKING

from dspark.engine.report.panel import MissingPanel, Panel
from dspark.engine.report.picture import Picture

if TYPE_CHECKING:
    from markupsafe import Markup


@dataclass(frozen=True, slots=True)
class PlacedFigure:
    """A figure on the page; its id is also the stem of its files."""

    id: str
    panel: Panel
    picture: Picture

    @property
    def svg(self) -> Markup:
        """Drawn by matplotlib from numbers and escaped text, so it goes into the page as it is."""
        from markupsafe import Markup

        alt = f"{self.panel.alt} {self.panel.sentence}".replace("`", "")
        return Markup(self.picture.inline(self.id, alt))


@dataclass(frozen=True, slots=True)
class Group:
    """What stands under one heading."""

    heading: str
    figures: tuple[PlacedFigure, ...]
    missing: tuple[MissingPanel, ...] = ()
    notes: tuple[str, ...] = ()
    verdict: tuple[str, ...] = ()  # its sentences, or why there is none


def render_page(title: str, groups: Sequence[Group], facts: Sequence[tuple[str, str]]) -> str:
    """The HTML of the report; everything but the drawings is escaped."""
    from jinja2 import Environment, StrictUndefined

    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True)
    environment.filters["coded"] = _coded
    template = environment.from_string(files(__package__).joinpath("page.html").read_text(encoding="utf-8"))
    many = len(groups) > 1
    return template.render(title=title, groups=groups, facts=facts, many=many)


def _coded(text: str) -> Markup:
    """`code` in backticks as an element."""
    from markupsafe import Markup, escape

    return Markup(re.sub(r"`([^`]+)`", r"<code>\1</code>", str(escape(text))))
