"""What the API asks of schedules: any node finds the shard that has one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple
from functools import partial
from typing import Any

from lsmq.errors import InvalidRequest, LsmqError, UnknownSchedule
from lsmq_node.broker import Broker, LeaderCalls, Maker
from lsmq_node.broker.loop_work import to_its_end
from lsmq_node.machines import MachineService
from lsmq_node.storage import StoredTopic

from .records import Schedule
from .shard_schedules import ShardSchedules

OPERATION = "schedules"
_TIMEOUT_S = 10.0


class ScheduleService(MachineService[ShardSchedules]):
    """One for each node. Loop thread only; ``start`` before anything else, ``stop`` at the end."""

    name = "schedules"

    def __init__(self, broker: Broker) -> None:
        super().__init__(broker, partial(ShardSchedules, self))
        self._leaders = LeaderCalls(broker.topology, OPERATION, self._do, _TIMEOUT_S)

    def _shards_of(self, topic: StoredTopic) -> list[int]:
        return sorted({part.shard for part in self.broker.ranges(topic)})

    @to_its_end  # Else it might be kept in two shards.
    async def put(self, topic: StoredTopic, schedule: Schedule) -> bool:
        """Make it, or put it in place of the topic's schedule of its name; whether there was one. Durable on return.
        Counted for whoever asks, where that is new in its shard.

        Where its queue is in another shard than before, it is deleted there afterwards. If that is not possible it
        comes from both, until it is put once more, or deleted.
        """
        self.broker.admission.write()
        own = self._shard_of(topic, schedule.queue)
        who = Maker.asking()
        kept = {"do": "keep", "schedule": astuple(schedule), "maker": who.principal, "address": who.address}
        known = bool((await self._leaders.ask(own, kept))["known"])
        others = [shard for shard in self._shards_of(topic) if shard != own]
        return await self._forget(topic, schedule.name, others) or known

    async def _forget(self, topic: StoredTopic, name: str, shards: Sequence[int]) -> bool:
        """Whether it was in any of the shards."""
        known = False
        for shard in shards:
            try:
                await self._leaders.ask(shard, {"do": "forget", "topic": topic.id, "name": name})
                known = True
            except UnknownSchedule:
                pass
            except LsmqError as error:
                if known:  # Who asks again is told that there is none.
                    error.details["sent"] = True
                raise
        return known

    def _shard_of(self, topic: StoredTopic, queue: int | str) -> int:
        return (
            self.broker.names.shard_of(topic, queue) if isinstance(queue, str) else self.broker.shard_of(topic, queue)
        )

    async def delete(self, topic: StoredTopic, name: str) -> None:
        """Durable on return, wherever it was. Raises ``UnknownSchedule``."""
        self.broker.admission.write()
        if not await self._forget(topic, name, self._shards_of(topic)):
            raise _unknown(topic, name)

    async def get(self, topic: StoredTopic, name: str) -> Schedule:
        """Raises ``UnknownSchedule``."""
        for shard in self._shards_of(topic):
            try:
                found = await self._leaders.ask(shard, {"do": "get", "topic": topic.id, "name": name})
            except UnknownSchedule:
                continue
            return Schedule(*found["schedule"])
        raise _unknown(topic, name)

    async def some(self, topic: StoredTopic, after: str, limit: int) -> list[Schedule]:
        """Schedules of a topic by name, from behind ``after``."""
        found: list[Schedule] = []
        for shard in self._shards_of(topic):
            asked = {"do": "list", "topic": topic.id, "after": after, "limit": limit}
            found += [Schedule(*each) for each in (await self._leaders.ask(shard, asked))["schedules"]]
        return sorted(found, key=lambda each: each.name)[:limit]

    async def of_all_topics(self, shard: int, after: str, limit: int) -> list[Schedule]:
        """Schedules of a shard by their keys, from behind ``after``."""
        asked = {"do": "list_all", "after": after, "limit": limit}
        return [Schedule(*each) for each in (await self._leaders.ask(shard, asked))["schedules"]]

    # Between nodes

    async def _do(self, number: int, body: dict[str, Any]) -> dict[str, Any]:
        shard = await self.shard(number)
        match body["do"]:
            case "keep":
                schedule = Schedule(*body["schedule"])
                await shard.port.prepare(await self.broker.topic_by_id(schedule.topic_id))
                return {"known": await shard.keep(schedule, Maker(body.get("maker"), body.get("address")))}
            case "forget":
                await shard.forget(body["topic"], body["name"])
                return {}
            case "get":
                return {"schedule": astuple(shard.schedule(body["topic"], body["name"]))}
            case "list":
                found = shard.schedules(body["topic"], body["after"], body["limit"])
                return {"schedules": [astuple(each) for each in found]}
            case "list_all":
                return {"schedules": [astuple(each) for each in shard.all_schedules(body["after"], body["limit"])]}
            case unknown:
                raise InvalidRequest(f"schedules know no {unknown!r}; this node may be older than who asks")


def _unknown(topic: StoredTopic, name: str) -> UnknownSchedule:
    return UnknownSchedule(f"topic {topic.name!r} has no schedule {name!r}", topic=topic.name, schedule=name)
