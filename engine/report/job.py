"""Run directories in, a folder with the report out."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dspark.engine.jobs import strict_json
from dspark.engine.jobs.atomic_file import replaced
from dspark.engine.progress import Progress, silent
from dspark.engine.report.comparison import comparison_panels
from dspark.engine.report.facts import fact_rows, manifest
from dspark.engine.report.page import Group, PlacedFigure, render_page
from dspark.engine.report.panel import Panel
from dspark.engine.report.picture import render
from dspark.engine.report.plain import plain
from dspark.engine.report.run import Run
from dspark.engine.report.section import Section, make_section

FORMAT, VERSION = "dspark-report", 1
PAGE, SUMMARY = "index.html", "summary.json"


@dataclass(frozen=True, slots=True)
class Report:
    """All there is to save."""

    summary: Mapping[str, Any]  # strict JSON
    page: str
    figures: tuple[PlacedFigure, ...]


def make_report(
    runs: Sequence[Run],
    *,
    seed: int,
    progress: Progress = silent,
) -> Report:
    """Compute and draw everything about `runs`; the same artefacts and seed give the same report."""
    sections = [make_section(run, seed=seed, progress=progress) for run in runs]
    compared = comparison_panels(sections) if len(sections) > 1 else []
    slugs = _slugs([run.name for run in runs]) if len(runs) > 1 else [""]
    drawn = _Drawing(sum(len(s.panels) for s in sections) + len(compared), progress)
    groups = [Group("Compared", drawn.place(compared, ""))] if compared else []
    for section, slug in zip(sections, slugs, strict=True):
        groups.append(
            Group(
                heading=section.run.name if len(sections) > 1 else "Figures",
                figures=drawn.place(section.panels, slug),
                missing=section.missing,
                notes=section.run.notes,
                verdict=(section.undecided,) if section.verdict is None else section.verdict.sentences,
            )
        )
    about = manifest(runs, seed=seed)
    figures = tuple(figure for group in groups for figure in group.figures)
    summary = {
        "format": FORMAT,
        "version": VERSION,
        "runs": [_section_summary(section) for section in sections],
        "compared": _figure_summaries(compared),
        "files": [PAGE, SUMMARY, *(name for figure in figures for name in _files_of(figure))],
        "manifest": about,
    }
    title = f"dspark report: {', '.join(run.name for run in runs)}"
    return Report(plain(summary), render_page(title, groups, fact_rows(about)), figures)


def save_report(report: Report, folder: Path) -> None:
    """Write the files, the page last; figures of an earlier report that this one lacks are removed.

    Raises:
        OSError: the folder cannot be written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    earlier = _files_before(folder / SUMMARY)
    for figure in report.figures:
        for name, content in zip(
            _files_of(figure), (figure.picture.svg.encode("utf-8", "backslashreplace"), figure.picture.png), strict=True
        ):
            _write(folder / name, content)
    _write(folder / SUMMARY, strict_json.dumps(report.summary, indent=2) + b"\n")
    _write(folder / PAGE, report.page.encode("utf-8", "backslashreplace"))
    for name in earlier - set(report.summary["files"]):
        (folder / name).unlink(missing_ok=True)


class _Drawing:
    """Draws panels one after the other and tells how far it is."""

    def __init__(self, total: int, progress: Progress) -> None:
        self._total, self._progress, self._done = total, progress, 0

    def place(self, panels: Sequence[Panel], slug: str) -> tuple[PlacedFigure, ...]:
        placed = []
        for panel in panels:
            self._progress("Drawing", self._done, self._total)
            self._done += 1
            name = f"{slug}-{panel.name}" if slug else panel.name
            placed.append(PlacedFigure(name, panel, render(panel.draw, panel.size)))
        return tuple(placed)


def _slugs(names: Sequence[str]) -> list[str]:
    """Names as parts of file names, each different."""
    slugs = [re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-") or "run" for name in names]
    return slugs if len(set(slugs)) == len(slugs) else [f"{slug}-{i}" for i, slug in enumerate(slugs, start=1)]


def _files_of(figure: PlacedFigure) -> tuple[str, str]:
    return f"{figure.id}.svg", f"{figure.id}.png"


def _files_before(summary: Path) -> set[str]:
    """Figures that an earlier report left here, by its own list; nothing else in the folder is ours."""
    with suppress(OSError, ValueError, TypeError, KeyError):
        document = strict_json.loads(summary.read_text(encoding="utf-8"))
        if document["format"] == FORMAT:
            return {name for name in document["files"] if re.fullmatch(r"[\w-]+\.(svg|png)", name)}
    return set()


def _write(path: Path, content: bytes) -> None:
    with replaced(path) as writer:
        writer.write(content)


def _section_summary(section: Section) -> dict[str, Any]:
    return {
        "run": section.run.name,
        "figures": _figure_summaries(section.panels),
        "missing": section.missing,
        "notes": section.run.notes,
        "verdict": section.verdict,
        "undecided": section.undecided if section.verdict is None else None,
    }


def _figure_summaries(panels: Sequence[Panel]) -> dict[str, Any]:
    return {panel.name: {"title": panel.title, "sentence": panel.sentence, **panel.numbers} for panel in panels}
