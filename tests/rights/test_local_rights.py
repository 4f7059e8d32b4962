"""Where a node of its own keeps rights: what it knows is what is stored."""

from __future__ import annotations

import asyncio
from pathlib import Path

from lsmq_node.cluster.rights import LocalRights
from lsmq_node.storage import ShardStore
from support.waiting import comes_true


async def test_what_is_stored_is_known_although_whoever_asked_for_it_is_gone(tmp_path: Path) -> None:
    store = ShardStore.open(tmp_path)
    try:
        rights = LocalRights(store)
        assert await rights.change({"token": b"good"}, 1)
        told = list[int]()
        rights.on_change(lambda: told.append(rights.known()[0]))
        revoking = asyncio.create_task(rights.change({"token": None}, 2))
        await asyncio.sleep(0)
        revoking.cancel()
        await asyncio.wait([revoking])
        assert revoking.cancelled()
        await comes_true(lambda: told == [3], "everybody is told")
        assert rights.known() == (3, {}) and LocalRights(store).known()[1] == {}
        assert not await rights.change({"token": b"good"}, 2), "by what was known before"
    finally:
        await asyncio.to_thread(store.close)
