"""Topics of a node in the test's own process: what is done although whoever asked for it is gone by then."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from lsmq.errors import TooManyQueues, TooManyTopics, Unavailable
from lsmq_node.broker import Broker, Maker, asked_from
from lsmq_node.broker.catalog import NodeCatalog
from lsmq_node.broker.loop_work import to_its_end
from lsmq_node.storage import TopicOptions
from support.waiting import PATIENCE_S, comes_true

from .in_process import Session, with_node


@contextmanager
def held_up(name: str) -> Iterator[tuple[threading.Event, threading.Event]]:
    """What the catalog does under this name tells that it is done, and goes on when it may."""
    does: Callable[..., Any] = getattr(NodeCatalog, name)
    done, may = threading.Event(), threading.Event()

    def waits(*given: Any) -> Any:
        found = does(*given)
        done.set()
        assert may.wait(PATIENCE_S)
        return found

    with patch.object(NodeCatalog, name, waits):
        try:
            yield done, may
        finally:
            may.set()


async def cancelled(broker: Broker, name: str, work: Coroutine[Any, Any, Any]) -> None:
    """Have the work be cancelled when the catalog has done it, and nobody knows yet."""
    with held_up(name) as (done, may):
        asking = asyncio.create_task(work)
        await comes_true(done.is_set, "it is stored")
        asking.cancel()
        await asyncio.wait([asking])
        assert asking.cancelled()
        may.set()
    await broker.alter_topic("u", {"retention_ms": 60_000})  # Behind it.


def test_who_waits_for_a_topic_is_told_that_it_was_deleted_although_who_did_it_is_gone(tmp_path: Path) -> None:
    async def test(session: Session, broker: Broker) -> None:
        await broker.create_topic("u", 1, TopicOptions())
        reading = asyncio.create_task(session.get("/v1/topics/t/queues/0/messages?wait_ms=30000"))
        await comes_true(lambda: broker.waiters.count == 1, "a poll is held")
        await cancelled(broker, "delete", broker.delete_topic("t"))
        async with asyncio.timeout(PATIENCE_S):
            assert (await reading).status == 404

    with_node(tmp_path, test)


@pytest.mark.parametrize("how", ["made", "grown"])
def test_what_an_address_made_counts_although_it_did_not_wait_for_it(tmp_path: Path, how: str) -> None:
    async def test(session: Session, broker: Broker) -> None:
        await broker.create_topic("u", 1, TopicOptions())
        asked_from.set("192.0.2.1")
        maker, options = Maker.asking(), TopicOptions()
        if how == "made":
            await cancelled(broker, "create", broker.create_topic("a", 1, options, maker))
            with pytest.raises(TooManyTopics):
                await broker.create_topic("b", 1, options, maker)
        else:
            await broker.create_topic("a", 1, options, maker)
            await cancelled(broker, "grow", broker.grow_topic("a", 10))
            with pytest.raises(TooManyQueues):
                await broker.grow_topic("a", 11)

    with_node(tmp_path, test, address_share_percent=1, max_topics=100, max_queues=1_000)


def test_what_goes_on_for_whom_is_gone_fails_without_a_word(caplog: pytest.LogCaptureFixture) -> None:
    async def run() -> None:
        go_on = asyncio.Event()

        @to_its_end
        async def work() -> None:
            await go_on.wait()
            raise Unavailable("not now")

        asked = asyncio.create_task(work())
        await asyncio.sleep(0)
        asked.cancel()
        await asyncio.wait([asked])
        go_on.set()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        with pytest.raises(Unavailable):
            await work()

    asyncio.run(run())
    gc.collect()
    assert "never retrieved" not in caplog.text
