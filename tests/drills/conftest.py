"""What drills start beside nodes is forked from an interpreter that has imported LSMQ."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from lsmq_lab.drills import network, side_work
from support.python_process import forked_programs


@pytest.fixture(autouse=True, scope="session")
def drills_start_at_once() -> Iterator[None]:
    with forked_programs(network, side_work):
        yield
