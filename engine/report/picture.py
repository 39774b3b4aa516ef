"""From a drawing to files: SVG and PNG on white, and an SVG that takes its ink from the page it stands on."""

from __future__ import annotations

import io
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from xml.sax.saxutils import quoteattr

if TYPE_CHECKING:
    from matplotlib.figure import Figure

INK, PAPER, BLUE = "#24292f", "#fffffe", "#0072b2"

# For the time of one drawing only. Text stays text: it can be searched, and is small.
_STYLE: dict[Any, Any] = {
    **dict.fromkeys(("text.color", "axes.edgecolor", "axes.labelcolor", "xtick.color", "ytick.color"), INK),
    **dict.fromkeys(("figure.facecolor", "axes.facecolor", "savefig.facecolor"), PAPER),
    "axes.axisbelow": True,
    "axes.grid": True,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "font.size": 9.0,
    "grid.alpha": 0.15,
    "grid.color": INK,
    "legend.frameon": False,
    "svg.fonttype": "none",
    "svg.hashsalt": "dspark",
}


@dataclass(frozen=True, slots=True)
class Picture:
    """One figure, in the forms in which it is saved."""

    svg: str
    png: bytes

    def inline(self, name: str, alt: str) -> str:
        """An <svg> element: neutral colours and the darkest other one follow the page's, and its ids are its own."""
        svg = self.svg[self.svg.index("<svg") :]
        svg = re.sub(r"<metadata>.*?</metadata>\s*", "", svg, flags=re.DOTALL)
        svg = svg.replace(INK, "currentColor").replace(f"fill: {PAPER}", "fill: none")
        svg = svg.replace(BLUE, f"var(--blue, {BLUE})")
        svg = re.sub(r'\bid="([^"]+)"', rf'id="{name}-\1"', svg)
        svg = re.sub(r'(href="#|url\(#)', rf"\1{name}-", svg)
        # The page sizes it; the view box keeps its shape.
        svg = re.sub(r'(<svg[^>]*?) width="[^"]*"', r"\1", svg, count=1)
        svg = re.sub(r'(<svg[^>]*?) height="[^"]*"', r"\1", svg, count=1)
        return svg.replace("<svg", f'<svg role="img" aria-label={quoteattr(alt)}', 1)


def render(draw: Callable[[Figure], None], size: tuple[float, float]) -> Picture:
    """Draw into a new figure of `size` inches."""
    from matplotlib import rc_context
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    with rc_context(_STYLE):
        figure = Figure(figsize=size, layout="constrained")
        FigureCanvasAgg(figure)
        draw(figure)
        svg, png = io.BytesIO(), io.BytesIO()
        # No date, so that the same numbers give the same file.
        figure.savefig(svg, format="svg", metadata={"Date": None, "Creator": None})
        figure.savefig(png, format="png", dpi=160, metadata={"Software": None})
    return Picture(svg.getvalue().decode("utf-8"), png.getvalue())
