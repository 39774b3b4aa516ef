"""The page and its pictures: well-formed, self-contained, readable without seeing."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from html.parser import HTMLParser

import pytest
from matplotlib import rcParams

from dspark.engine.report.page import render_page
from dspark.engine.report.picture import render

VOID = {"meta", "br", "img", "link", "hr", "input"}


class Reader(HTMLParser):
    """Elements with their attributes and text; fails on a tag that closes another."""

    def __init__(self, html):
        super().__init__(convert_charrefs=True)
        self.open, self.elements, self.text = [], [], []
        self.feed(html)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attributes):
        self.elements.append((tag, dict(attributes)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.elements.append((tag, dict(attributes)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text.append(data)

    def all(self, tag):
        return [attributes for name, attributes in self.elements if name == tag]


@pytest.fixture(scope="module")
def reader(whole_report):
    return Reader(whole_report.page)


def test_every_figure_is_there_with_a_text_alternative(whole_report, reader):
    names = [figure.id for figure in whole_report.figures]
    assert names == [
        "reliability",
        "acceptance",
        "acceptance_lengths",
        "threshold_sweep",
        "confidence_audit",
        "drift",
        "step_curve",
        "policy_frontier",
        "verification_budget",
    ]
    assert [figure["id"] for figure in reader.all("figure")] == names
    pictures = reader.all("svg")
    assert len(pictures) == len(names)
    for picture, figure in zip(pictures, whole_report.figures, strict=True):
        assert picture["role"] == "img"
        # What is drawn, and what is seen in it.
        assert picture["aria-label"].startswith(figure.panel.alt)
        assert len(picture["aria-label"]) > len(figure.panel.alt) + 20
        assert figure.panel.sentence in whole_report.summary["runs"][0]["figures"][figure.id]["sentence"]


def test_nothing_is_fetched(whole_report, reader):
    for tag, attributes in reader.elements:
        assert tag not in ("script", "link", "img", "iframe", "object", "embed", "image")
        for name in ("src", "href", "xlink:href", "srcset", "action"):
            assert attributes.get(name, "#").startswith("#"), (tag, attributes)
    assert "@import" not in whole_report.page
    assert all(target.startswith("#") for target in re.findall(r"url\(([^)]*)\)", whole_report.page))


def test_ids_are_unique_and_every_reference_has_one(whole_report, reader):
    ids = [attributes["id"] for _, attributes in reader.elements if "id" in attributes]
    assert len(set(ids)) == len(ids)
    references = set(re.findall(r"url\(#([^)]*)\)", whole_report.page))
    for _, attributes in reader.elements:
        references |= {attributes[n].removeprefix("#") for n in ("href", "xlink:href") if n in attributes}
        references |= set(attributes.get("aria-labelledby", "").split())
    assert references <= set(ids)


def test_contents_lead_to_every_figure(whole_report, reader):
    targets = [attributes["href"] for attributes in reader.all("a")]
    assert targets[1:] == [f"#{figure.id}" for figure in whole_report.figures] + ["#manifest"]


def test_figures_shrink_to_a_narrow_page(whole_report):
    rules = re.findall(r"\.scroll svg \{([^}]*)\}", whole_report.page)
    assert rules and all("min-width" not in rule for rule in rules)
    assert "width: 100%" in rules[0] and "height: auto" in rules[0]


def test_what_scrolls_can_be_reached_by_keyboard(reader):
    scrolling = [attributes for attributes in reader.all("div") if attributes.get("class") == "scroll"]
    assert scrolling and all(attributes["tabindex"] == "0" for attributes in scrolling)


def test_names_from_outside_are_text_and_never_markup(whole_report, reader):
    assert "<run>" not in whole_report.page
    assert any("<run> & co" in text for text in reader.text)


def test_colours_of_text_and_axes_are_the_page_s(whole_report):
    for figure in whole_report.figures:
        assert "currentColor" in figure.svg
        assert not re.search("#24292f|#000000|#fffffe", figure.svg)


def test_saved_pictures_are_well_formed(whole_report):
    for figure in whole_report.figures:
        root = ET.fromstring(figure.picture.svg)
        assert root.tag.endswith("svg")
        assert figure.picture.png.startswith(b"\x89PNG")


@pytest.mark.filterwarnings("error")
def test_a_picture_changes_no_settings_and_is_the_same_every_time():
    before = dict(rcParams)

    def draw(figure):
        figure.subplots().plot([1, 2], [3, 4], label="a < b")

    one, other = render(draw, (3, 2)), render(draw, (3, 2))
    assert (one.svg, one.png) == (other.svg, other.png)
    assert dict(rcParams) == before
    assert 'aria-label="5 &lt; 6"' in one.inline("x", "5 < 6")


def test_an_empty_report_is_a_page_too():
    reader = Reader(render_page("nothing <here>", [], [("seed", "0")]))
    assert "nothing <here>" in "".join(reader.text)
