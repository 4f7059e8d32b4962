"""Whether messages of a transaction may make the queues with names that they are for, asked when they come.

What is decided is delivered, and makes its queues; so the leaders of their shards are asked before. A leader that
cannot be asked now refuses nothing. What a transaction makes counts for who began it, from when it is delivered on:
while several of one client wait for that, together they may make as many more as each of them might.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import astuple
from typing import Any

import structlog

from lsmq.errors import LsmqError, TooManyQueues, UnknownTopic
from lsmq.queue_names import SEPARATOR
from lsmq_node.broker import Broker, LeaderCalls, Maker
from lsmq_node.storage import NamesBehind

from .records import PartNames

OPERATION = "names-to-come"
_TIMEOUT_S = 1.0
_log = structlog.get_logger("lsmq.transactions")


class NamesToCome:
    """One for each node. Loop thread only."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._calls = LeaderCalls(broker.topology, OPERATION, self._look, _TIMEOUT_S)

    async def check(self, parts: Iterable[PartNames]) -> None:
        """Whether whoever asks may make those that are not there. Raises ``TooManyQueues``."""
        maker = astuple(Maker.asking())
        await asyncio.gather(*(self._ask(part, maker) for part in parts))

    async def _ask(self, part: PartNames, maker: tuple[str | None, ...]) -> None:
        try:
            await self._calls.ask(part.shard, {"topic": part.topic_id, "names": part.joined, "maker": maker})
        except TooManyQueues:
            raise
        except LsmqError as error:  # There is no leader now, or one of a release that does not know this.
            _log.info("names_not_asked", shard=part.shard, code=error.code, message=error.message)

    async def _look(self, shard: int, asked: dict[str, Any]) -> dict[str, Any]:
        port, names = self._broker.topology.port(shard), bytes(asked["names"]).decode().split(SEPARATOR)
        port.check_readable(follower=False)
        try:
            topic = await self._broker.topic_by_id(int(asked["topic"]))
        except UnknownTopic:
            return {}
        count = len(names)
        while port.store.has_topic(topic.id):
            known = await self._broker.names.current(port, topic)
            try:
                count = int((known.find(names) < 0).sum())
            except NamesBehind:
                continue
            break
        if count:
            self._broker.name_admission.of(port.store, Maker(*asked["maker"]))(count)
        return {}
