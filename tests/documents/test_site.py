"""The documentation as a site: built without a warning, whole, and on its own."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from support.made_once import made_once
from support.waiting import PATIENCE_S

TOP = Path(__file__).parents[2]
#: What a browser fetches by itself; links of text are the reader's to follow.
_FETCHED = re.compile(r"<(?:script|img|iframe|source)[^>]*\ssrc=\"([^\"]+)\"|<link[^>]*\shref=\"([^\"]+)\"")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return made_once(tmp_path_factory, "site", build)


def build(directory: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(TOP / "scripts"), "NO_MKDOCS_2_WARNING": "1"}
    ran = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", directory],
        cwd=TOP,
        env=environment,
        capture_output=True,
        text=True,
        timeout=2 * PATIENCE_S,
    )
    assert ran.returncode == 0, ran.stderr


def test_every_page_is_there_and_shown_by_the_navigation(site: Path) -> None:
    pages = [path.relative_to(TOP / "docs").with_suffix(".html") for path in (TOP / "docs").rglob("*.md")]
    index = (site / "index.html").read_text()
    assert [str(page) for page in pages if not (site / page).is_file() or f'href="{page}"' not in index] == []


def test_no_page_has_a_browser_ask_anybody_else(site: Path) -> None:
    elsewhere = {
        found
        for page in site.rglob("*.html")
        for match in _FETCHED.finditer(page.read_text())
        if "://" in (found := match[1] or match[2])
    }
    assert elsewhere == set()
    styles = "".join(path.read_text() for path in site.rglob("*.css"))
    assert re.findall(r"(?:url\(|@import\s*)[\"']?https?://[^)\"']+", styles) == []
    assert (site / "search").is_dir(), "search needs no server"


def test_the_reference_has_what_users_import(site: Path) -> None:
    reference = (site / "reference" / "python.html").read_text()
    for name in ("Client.create_topic", "Producer.send_many", "Consumer.poll", "WorkQueue.run", "testing.NodeProcess"):
        assert f'id="lsmq.{name}"' in reference
    assert ":meth:" not in reference and ":class:" not in reference
