"""The worked examples of the format pages are the bytes of the golden files."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from .golden_files import FILES, GOLDEN

PAGES = Path(__file__).parents[2] / "docs" / "formats"
LINE = re.compile(r"([0-9a-f]{8}): ((?:[0-9a-f]{2} )*[0-9a-f]{2})(?:  |$)")
FILE = re.compile(r"`tests/storage/golden/([^`]+)`")


@pytest.mark.parametrize("page", ["record-batch", "wal", "sstable", "manifest", "checkpoint", "snapshot", "dedupe-ids"])
def test_the_hex_example_of_a_page_is_the_golden_file(page: str) -> None:
    text = (PAGES / f"{page}.md").read_text()
    [name] = FILE.findall(text)
    golden = (GOLDEN / name).read_bytes()
    lines = [match for line in text.splitlines() if (match := LINE.match(line))]
    assert len(lines) >= 8
    for match in lines:
        position, shown = int(match[1], 16), bytes.fromhex(match[2])
        assert golden[position : position + len(shown)] == shown, match[0]


def test_every_golden_file_is_explained() -> None:
    text = "".join(path.read_text() for path in PAGES.glob("*.md"))
    assert set(FILE.findall(text)) == set(FILES)
