"""The audit log on a disk that fills: no line is torn, and what is lost is counted."""

from __future__ import annotations

import json
from pathlib import Path

from api.in_process import Session, with_node
from lsmq_node.broker import Broker
from lsmq_node.rights.audit import FILE, Audit
from support.mounts import tmpfs
from support.waiting import comes_true


def test_lines_are_whole_and_those_lost_are_counted_where_the_disk_fills_in_the_middle_of_one(tmp_path: Path) -> None:
    place = tmp_path / "small"

    async def check(session: Session, broker: Broker) -> None:
        audit = Audit(broker, on=True)
        audit._file = place / FILE
        filling = place / "filling"
        filling.write_bytes(bytes(8_192))
        for number in range(4):
            audit.note("done", operation=f"{number}", remote="r" * 2_900)
        audit.start()
        await comes_true(lambda: broker.parts.problems(essential=False), "the disk is full")
        (problem,) = broker.parts.problems(essential=False)
        assert "No space left" in problem
        for number in range(4, 6):  # In two turns more, of which each counts what the one before could not say.
            audit.note("done", operation=f"{number}", remote="r" * 2_900)
            await comes_true(lambda lost=number - 1: audit._lost == lost, "it is counted as well")
        filling.unlink()
        await comes_true(lambda: not broker.parts.problems(essential=False), "it is well again")
        audit.note("done", operation="later")
        await comes_true(lambda: {"lost", "later"} <= set(audit._file.read_text().split('"')), "it goes on")
        await audit.stop()
        lines = [json.loads(line) for line in audit._file.read_text().splitlines()]
        said = {(line["event"], line.get("operation") or line["count"]) for line in lines}
        assert said == {("done", "0"), ("done", "1"), ("done", "later"), ("lost", 4)} and len(lines) == len(said)

    with tmpfs(place, "size=16k"):
        with_node(tmp_path / "data", check)
