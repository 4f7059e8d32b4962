"""What benchmarks start: nodes, clients and cases are forked from an interpreter that has imported LSMQ."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from lsmq_lab.benchmarks import client_processes, isolate, node_servers, processes
from support.python_process import forked_programs


@pytest.fixture(autouse=True, scope="session")
def benchmarks_start_at_once() -> Iterator[None]:
    with forked_programs(client_processes, isolate, node_servers, processes):
        yield
