"""Limits of topics over their shards: each shard led here is told what the others hold.

Once a second, for topics whose limits are of all their shards together, or that delete what all groups have done with:
what the shards led here have measured is taken from them, and the leaders of the others are asked, one request a shard.
A leader that cannot be asked counts with what it said last; for who consumes a topic that is not good enough, and
nothing is deleted as consumed until it is known again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from lsmq import runtime
from lsmq.errors import LsmqError
from lsmq_node.storage import StoredTopic
from lsmq_node.storage.losses import LossReason
from lsmq_node.storage.shares import ALONE, Holding, Measurement, Rest, Usage, rest_of

from .background import KeptService
from .broker import Broker
from .leader_calls import asked_shard
from .topology import ShardPort

#: Of the requests of nodes to each other.
OPERATION = "topic_usage"
_PERIOD_S = 1.0
_TIMEOUT_S = 5.0
#: What a shard says of groups is good for so long.
_GROUPS_S = 10.0
#: A shard that refused something is first to get what is left, for so long.
_WANTING_S = 3.0
#: Topics a request.
_TOPICS = 2_000


@dataclass(frozen=True, slots=True)
class TopicTotals:
    """What a topic holds, over all its shards.

    Attributes:
        gone: by reason, how many messages went by themselves, ever.
        refused: batches refused at a limit, since the leaders of now lead.
    """

    messages: int
    size_bytes: int
    gone: dict[str, int]
    refused: int
    groups: frozenset[str] = field(default_factory=frozenset)


class LimitSharing(KeptService):
    """One for each node. Loop thread only."""

    def __init__(self, broker: Broker) -> None:
        super().__init__(broker, "limits")
        self._said: dict[tuple[int, int], tuple[float, Usage]] = {}  # by shard and topic: when, and what
        self._wanted: dict[tuple[int, int], float] = {}  # when it was first seen that they had refused more
        broker.topology.peers.answer(OPERATION, self._answer)

    async def usage(self, topic: StoredTopic) -> TopicTotals:
        """Measured where it was not by now. Raises ``NotLeader``, ``Unavailable``, ``ConnectionFailed``."""
        shards = sorted(self._broker.spans(topic))
        found = await asyncio.gather(*(self._of_shard(shard, [topic.id], measure=True) for shard in shards))
        usages = [usages[topic.id] for usages in found]
        return TopicTotals(
            sum(each.holding.messages for each in usages),
            sum(each.holding.size_bytes for each in usages),
            {
                why.name.lower(): sum(each.gone.get(why, 0) for each in usages)
                for why in LossReason
                if why is not LossReason.ASKED
            },
            sum(each.refused for each in usages),
            frozenset().union(*(each.groups for each in usages)),
        )

    # Telling the shards

    async def _run(self) -> None:
        while True:
            await self._round()
            self._part.running()
            await asyncio.sleep(_PERIOD_S)

    async def _round(self) -> None:
        topology = self._broker.topology
        ports = topology.ports()
        led = [port for port in ports if topology.leadership(port.number).here]
        for port in ports:
            port.store.retention.shards_on_disk = len(ports)
        if topology.shard_count == 1:
            for port in ports:
                port.store.retention.rest = None
            return
        for port in ports:
            if port not in led:  # What it knew is old when it leads again, and groups may have begun meanwhile.
                port.store.retention.rest = {}
        topics: dict[int, StoredTopic] = {}
        for port in led:
            topics |= {topic.id: topic for topic in port.store.retention.shared_topics()}
        holders = await self._holders(topics)
        wanted: dict[int, list[int]] = {}
        for topic_id, shards in holders.items():
            for shard in shards if len(shards) > 1 else ():
                wanted.setdefault(shard, []).append(topic_id)
        await asyncio.gather(*(self._learn(shard, ids) for shard, ids in wanted.items()))
        self._said = {key: said for key, said in self._said.items() if key[1] in holders and key[0] in wanted}
        wanted_from = runtime.monotonic() - _WANTING_S
        self._wanted = {key: at for key, at in self._wanted.items() if at >= wanted_from}
        for port in led:
            self._tell(port, holders)

    async def _holders(self, topics: dict[int, StoredTopic]) -> dict[int, Sequence[int]]:
        """The shards of each topic, which a store does not know."""
        found: dict[int, Sequence[int]] = {}
        for topic_id in topics:
            try:
                found[topic_id] = sorted(self._broker.spans(await self._broker.topic_by_id(topic_id)))
            except LsmqError:  # It is gone, or nobody can be asked; nothing is told of it.
                continue
        return found

    async def _learn(self, shard: int, topic_ids: list[int]) -> None:
        for first in range(0, len(topic_ids), _TOPICS):
            try:
                found = await self._of_shard(shard, topic_ids[first : first + _TOPICS])
            except LsmqError:  # Its leader is changing, or away: what it said last counts.
                return
            now = runtime.monotonic()
            for topic_id, usage in found.items():
                former = self._said.get((shard, topic_id))
                if former is not None and usage.refused > former[1].refused:
                    self._wanted[shard, topic_id] = now
                self._said[shard, topic_id] = (now, usage)

    def _tell(self, port: ShardPort, holders: dict[int, Sequence[int]]) -> None:
        fresh_from = runtime.monotonic() - _GROUPS_S
        rest: dict[int, Rest] = {}
        for topic in port.store.retention.shared_topics():
            others = [shard for shard in holders.get(topic.id, (port.number, -1)) if shard != port.number]
            said = [self._said.get((shard, topic.id)) for shard in others]
            if not others:
                rest[topic.id] = ALONE
            elif all(said):
                known = [each for each in said if each is not None]
                groups = frozenset().union(*(usage.groups for _, usage in known))
                rest[topic.id] = rest_of(
                    port.number,
                    port.store.retention.leadership,
                    {shard: usage.measured for shard, (_, usage) in zip(others, known, strict=True)},
                    wanting=sum((shard, topic.id) in self._wanted for shard in others),
                    wants=(port.number, topic.id) in self._wanted,
                    groups=groups if min(at for at, _ in known) >= fresh_from else None,
                )
        port.store.retention.rest = rest

    # Asking and answering

    async def _of_shard(self, shard: int, topic_ids: list[int], *, measure: bool = False) -> dict[int, Usage]:
        """Of those topics whose usage is known; to ``measure`` it where it is not takes longer."""
        topology = self._broker.topology
        if topology.leadership(shard).here:
            return await self._here(shard, topic_ids, measure)
        asked = {"shard": shard, "topics": topic_ids, "measure": measure}
        answer = await topology.peers.ask(shard, OPERATION, asked, _TIMEOUT_S)
        # One of an earlier release tells no floor, and has heard of nothing.
        told = {topic_id: more for topic_id, *more in answer.get("told", ())}
        return {
            topic_id: Usage(
                _measurement(Holding(messages, size), *told.get(topic_id, ())), dict(gone), refused, frozenset(groups)
            )
            for topic_id, messages, size, gone, refused, groups in answer["usages"]
        }

    async def _here(self, shard: int, topic_ids: list[int], measure: bool) -> dict[int, Usage]:
        """Raises ``NotLeader``, ``Unavailable``."""
        port = self._broker.topology.port(shard)
        port.check_readable()
        store = port.store
        retention = store.retention
        if not measure:
            return {id: usage for id in topic_ids if (usage := retention.known_usage(id)) is not None}

        def measured() -> dict[int, Usage]:
            return {id: retention.usage(id) if store.has_topic(id) else Usage.of_nothing() for id in topic_ids}

        return await self._broker.in_readers(measured)

    async def _answer(self, asked: dict[str, Any]) -> dict[str, Any]:
        """Another node's question."""
        shard = asked_shard(self._broker.topology, asked)
        topic_ids = [int(topic_id) for topic_id in asked["topics"]]
        found = await self._here(shard, topic_ids, bool(asked["measure"]))
        return {
            "usages": [
                [
                    topic_id,
                    usage.holding.messages,
                    usage.holding.size_bytes,
                    list(usage.gone.items()),
                    usage.refused,
                    sorted(usage.groups),
                ]
                for topic_id, usage in found.items()
            ],
            "told": [
                [
                    topic_id,
                    [usage.measured.floor.messages, usage.measured.floor.size_bytes],
                    usage.measured.stamp,
                    None if (heard := usage.measured.heard) is None else list(heard.items()),
                ]
                for topic_id, usage in found.items()
            ],
        }


def _measurement(
    holding: Holding,
    floor: Sequence[int] = (0, 0),
    stamp: Sequence[Any] = ("", 0),
    heard: Sequence[tuple[int, Sequence[Any]]] | None = (),
) -> Measurement:
    known = None if heard is None else {shard: (name, number) for shard, (name, number) in heard}
    return Measurement(holding, Holding(*floor), (stamp[0], stamp[1]), known)
