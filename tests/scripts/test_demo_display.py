"""What the demo says, kept as a picture."""

from __future__ import annotations

import re
from pathlib import Path
from xml.etree import ElementTree

from _demo.check import Check
from _demo.display import Display


def test_what_is_said_is_in_the_picture_which_fetches_nothing(tmp_path: Path) -> None:
    display = Display.recorded()
    display.heading("First run: into 64 queues and back")
    with display.bars({"sent": 8}) as bars:
        for completed in range(9):
            bars.update("sent", completed)
    display.check(Check(True, "none lost, none doubled"))
    display.check(Check(False, "offsets have gaps"))
    display.table("3 nodes", ("", "first run"), [("messages", "64")])
    display.save(tmp_path / "demo.svg")
    picture = (tmp_path / "demo.svg").read_text()
    ElementTree.fromstring(picture)
    words = re.sub(r"&#160;", " ", picture)
    for said in (
        "First run: into 64 queues and back",
        "8 of 8",
        "none lost, none doubled",
        "FAIL",
        "offsets have gaps",
        "64",
    ):
        assert said in words
    assert re.findall(r"url\((?!#)|@font-face|@import|href=", picture) == []
