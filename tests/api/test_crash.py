"""kill -9 under load: every acknowledged message is there afterwards, once, in the order of its queue."""

from __future__ import annotations

import http.client
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from lsmq.record_batch import BatchBuilder
from support.node_process import NodeProcess

from .calls import Api

WRITERS = 8


class Load:
    """Writers that send numbered messages to a queue each, retrying what got no answer with the same bytes."""

    def __init__(self, node: NodeProcess) -> None:
        self.api = Api(node.url)
        self.acknowledged = [0] * WRITERS  # messages of each writer, numbered from 0
        self.running = threading.Event()
        self.running.set()
        self._sequences = [0] * WRITERS

    def write(self, writer: int) -> None:
        while self.running.is_set():
            first = self.acknowledged[writer]
            builder = BatchBuilder()
            for number in range(first, first + 5):
                builder.add(writer, b"%d" % number, key=f"writer-{writer}")
            batch = builder.build(producer_id=1000 + writer, sequence=self._sequences[writer])
            while self.running.is_set():
                try:
                    answer = self.api.send_batch("t", batch, None)
                except (OSError, http.client.HTTPException):
                    continue
                assert answer.status == 200, answer.body
                self.acknowledged[writer] += 5
                self._sequences[writer] += 1
                break


def at_least(load: Load, count: int) -> None:
    done = threading.Event()

    def watch() -> None:
        while load.running.is_set() and sum(load.acknowledged) < count:
            done.wait(0.002)
        done.set()

    threading.Thread(target=watch, daemon=True).start()
    assert done.wait(60), "the load never got that far"


def check(load: Load) -> None:
    """All that was acknowledged is there once and in order; what was not may be there at the end."""
    for writer in range(WRITERS):
        stored = [int(body) for body in load.api.all_bodies("t", writer)]
        assert len(stored) >= load.acknowledged[writer]
        assert stored == list(range(len(stored)))


@pytest.mark.slow
@pytest.mark.part(1)
def test_nothing_acknowledged_is_lost_or_doubled_by_kills(make_node: Callable[..., NodeProcess]) -> None:
    node = make_node(segment_bytes=256 * 1024, memtable_bytes=4 * 1024 * 1024).start()
    load = Load(node)
    load.api.create("t", WRITERS)
    with ThreadPoolExecutor(WRITERS) as pool:
        writers = [pool.submit(load.write, writer) for writer in range(WRITERS)]
        for kill in range(1, 6):
            at_least(load, sum(load.acknowledged) + 700 * kill)
            node.kill9()
            node.start()
        at_least(load, sum(load.acknowledged) + 500)
        load.running.clear()
        for writer in writers:
            writer.result()
    check(load)
    node.kill9()
    node.start()
    check(load)
    assert node.stop() == 0
