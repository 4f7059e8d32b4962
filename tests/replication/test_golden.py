"""The main scenarios event by event, compared exactly; ``REWRITE_GOLDEN=1`` writes them anew, to be read as a diff."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from .script import run

GOLDEN = Path(__file__).parent / "golden"


@pytest.mark.parametrize("path", sorted(GOLDEN.glob("*.txt")), ids=lambda path: path.stem)
def test_a_script_goes_as_written(path: Path) -> None:
    written = path.read_text()
    now = run(written)
    if os.environ.get("REWRITE_GOLDEN"):
        path.write_text(now)
    assert now == written


def test_there_are_scripts() -> None:
    assert len(list(GOLDEN.glob("*.txt"))) >= 7
