"""Diagrams are pictures that were drawn from the sources beside them, on pages that say in words what is to be seen."""

from __future__ import annotations

import re
from pathlib import Path
from xml.etree import ElementTree

import pytest

from _docs.diagrams import DIAGRAMS, finished, out_of_date
from documents.blocks import ALL, PAGES

_SHOWN = re.compile(r"!\[([^\]]*)\]\((?:\.\./)*(?:docs/)?diagrams/([^)]+)\)")
_DRAWN = '<svg width="100%" viewBox="-5 0 90.4 40"><style>a{}</style><g/></svg>'


def test_every_picture_was_drawn_from_the_source_beside_it() -> None:
    assert [source.name for source in out_of_date()] == [], "scripts/diagrams draws them"


def test_every_picture_is_shown_by_a_page_that_says_what_is_on_it() -> None:
    shown = {match[2]: match[1] for page in PAGES for match in _SHOWN.finditer(page.read_text())}
    assert sorted(shown) == sorted(path.name for path in DIAGRAMS.glob("*.svg"))
    assert [name for name, words in shown.items() if len(words) < 60] == []


def test_no_page_leaves_a_diagram_to_be_drawn_by_the_reader() -> None:
    assert [block.place for block in ALL if block.language == "mermaid"] == []


@pytest.mark.parametrize("picture", sorted(DIAGRAMS.glob("*.svg")), ids=lambda path: path.stem)
def test_a_picture_has_a_size_a_dark_look_and_nothing_of_elsewhere(picture: Path) -> None:
    text = picture.read_text()
    root = ElementTree.fromstring(text)
    assert 0 < int(root.attrib["width"]) < 1200, "wider ones cannot be read beside a page's navigation"
    assert int(root.attrib["height"]) > 0
    assert "prefers-color-scheme: dark" in text
    assert "foreignObject" not in text, "many viewers do not show it"
    assert re.findall(r"(?:href|src)=\"[^#\"][^\"]*|url\((?!#)[^)]*", text) == []


def test_a_source_that_changed_is_out_of_date_until_it_is_drawn_again(tmp_path: Path) -> None:
    source = tmp_path / "a.mmd"
    source.write_text("flowchart LR\n  A --> B\n")
    assert out_of_date(tmp_path) == [source]
    source.with_suffix(".svg").write_text(finished(_DRAWN, source.read_text()))
    assert out_of_date(tmp_path) == []
    source.write_text("flowchart LR\n  A --> C\n")
    assert out_of_date(tmp_path) == [source]


def test_what_was_drawn_stands_on_a_card_as_large_as_it_is() -> None:
    svg = finished(_DRAWN, "flowchart LR\n")
    assert '<svg width="90" height="40" viewBox="-5 0 90.4 40"><rect x="-5.0" y="0.0" width="90.4" height="40.0"' in svg
    with pytest.raises(ValueError, match="no viewBox"):
        finished("<svg/>", "")
