"""Topics of a cluster: the control state is the authority on which there are and which queues lie where."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from lsmq import runtime
from lsmq.errors import InvalidRequest, LsmqError, TopicExists, Unavailable, UnknownTopic
from lsmq_coordinator.control import ControlClient
from lsmq_coordinator.pieces import NamedPieces
from lsmq_coordinator.state import QueueRange, TopicRecord, leveled_ranges
from lsmq_node.broker.catalog import can_only_grow, has_names
from lsmq_node.broker.meant_topic import deleted
from lsmq_node.broker.placement import stored_range
from lsmq_node.broker.topology import AdmitTopic, CheckGrowth, CheckOptions, CheckSpread, KeysAtSpread
from lsmq_node.storage import StoredTopic, TopicOptions, check_topic_name

_COMMAND_TIMEOUT_S = 5.0
_CATCH_UP_TIMEOUT_S = 2.0


class _Stale(InvalidRequest):
    """What a command was decided by had changed when it came to be carried out."""


class ClusterTopics:
    """The topics of the control state, as the broker wants them. Loop thread only."""

    def __init__(self, control: ControlClient) -> None:
        self._control = control
        # What the rest is of, and its version.
        self._agreed: NamedPieces[TopicRecord] = NamedPieces()
        self._version = 0
        self._by_name: dict[str, tuple[TopicRecord, StoredTopic]] = {}
        self._names: dict[int, str] = {}
        self._queues = 0  # of those whose queues have no names
        self._deleted: set[int] = set()  # until they are taken

    def _current(self) -> dict[str, tuple[TopicRecord, StoredTopic]]:
        state = self._control.state
        topics = state.topics
        if topics is not self._agreed:
            for name, former in topics.gone_since(self._agreed).items():
                self._queues -= _numbered(self._by_name.pop(name)[1])
                self._forget(former)
            for name, agreed in topics.changed_since(self._agreed).items():
                known = self._by_name.get(name)
                if known is not None and known[0].id != agreed.id:
                    self._forget(known[0])
                found = self._by_name[name] = _kept(known, agreed)
                self._queues += _numbered(found[1]) - (0 if known is None else _numbered(known[1]))
                self._names[agreed.id] = name
            self._agreed, self._version = topics, state.topics_version
        return self._by_name

    def _forget(self, former: TopicRecord) -> None:
        del self._names[former.id]
        self._deleted.add(former.id)

    def take_deleted(self) -> set[int]:
        """Ids of the topics that were known and are gone, since this was asked."""
        self._current()
        deleted, self._deleted = self._deleted, set()
        return deleted

    def all(self) -> Sequence[StoredTopic]:
        return [topic for _, topic in self._current().values()]

    def changes(self) -> object:
        self._current()
        return self._version

    def count(self) -> int:
        return len(self._current())

    def queue_count(self) -> int:
        self._current()
        return self._queues

    def find(self, name: str) -> StoredTopic | None:
        found = self._current().get(name)
        return None if found is None else found[1]

    async def newest(self) -> Sequence[StoredTopic]:
        """All there are now: this node may have been away. What it knows, while the control plane cannot be asked."""
        with suppress(LsmqError):
            await self._catch_up()
        return self.all()

    async def by_name(self, name: str) -> StoredTopic:
        """Raises ``UnknownTopic``, after asking the control plane whether it is new."""
        found = self._current().get(name)
        if found is None:
            await self._catch_up()
            found = self._current().get(name)
        if found is None:
            raise UnknownTopic(f"there is no topic {name!r}; create it first", topic=name)
        return found[1]

    async def by_id(self, topic_id: int) -> StoredTopic:
        """Raises ``UnknownTopic``."""
        self._current()
        if topic_id not in self._names:
            await self._catch_up()
            self._current()
        name = self._names.get(topic_id)
        if name is None:
            raise UnknownTopic(f"there is no topic with id {topic_id}", topic_id=topic_id)
        return self._by_name[name][1]

    def placed(self, shard: int, topic: StoredTopic) -> tuple[StoredTopic, int, int]:
        """The topic as it is agreed on, and the queues ``[first, end)`` of the shard. Raises ``UnknownTopic``."""
        agreed, found = self._current().get(topic.name, (None, topic))
        if agreed is None or agreed.id != topic.id:
            raise deleted(topic.name, topic.id)
        return found, *stored_range(found, shard, len(self._control.state.shards))

    async def _catch_up(self) -> None:
        """Raises ``Unavailable`` when the control plane cannot be asked: then nobody knows what is new."""
        await self._control.catch_up(_CATCH_UP_TIMEOUT_S)

    async def create(
        self, name: str, queues: int, admit: AdmitTopic, *, exact: bool = False
    ) -> tuple[StoredTopic, bool]:
        """Raises ``TopicExists``, ``Unavailable``, ``TimedOut``, and what ``admit`` raises."""
        check_topic_name(name)
        while True:
            if exact:
                await self._catch_up()
            command = {
                "op": "create_topic",
                "name": name,
                "queues": queues,
                "options": admit().to_dict(),
                "created_ms": runtime.wall_ms(),
                **({"expected_topics_version": self._version} if exact else {}),
            }
            try:
                result = await self._submit(command)
            except _Stale:
                continue
            return await self.by_name(name), bool(result["created"])

    async def grow(self, name: str, queues: int, check: CheckGrowth | None = None) -> StoredTopic:
        """Raises ``UnknownTopic``, ``InvalidRequest`` where it has more queues, ``Unavailable``, ``TimedOut``."""
        if check is not None:
            await self._catch_up()
        topic = await self.by_name(name)
        if topic.named:
            raise has_names(topic)
        while topic.queues < queues:
            command = {"op": "grow_topic", "name": name, "topic_id": topic.id, "expected_queues": topic.queues}
            if check is not None:
                check(topic)
                command["expected_topics_version"] = self._version
            with suppress(_Stale):
                await self._submit({**command, "queues": queues})
            await self._catch_up()
            topic = await self.by_name(name)
        if topic.queues > queues:
            raise can_only_grow(topic, queues)
        return topic

    async def spread(self, name: str, keys: KeysAtSpread, check: CheckSpread) -> StoredTopic:
        """Raises ``UnknownTopic``, ``InvalidRequest``, ``Unavailable``, ``TimedOut``, and what ``check`` raises."""
        while True:
            await self._catch_up()
            topic, shards = await self.by_name(name), len(self._control.state.shards)
            ranges = leveled_ranges(tuple(QueueRange(*found) for found in topic.ranges), shards)
            check(topic, ranges[-1].end)
            if ranges[-1].end == topic.queues:
                return topic
            with suppress(_Stale):
                await self._submit(
                    {
                        "op": "spread_topic",
                        "name": name,
                        "topic_id": topic.id,
                        "expected_queues": topic.queues,
                        "expected_shards": shards,
                        "expected_topics_version": self._version,
                        "keys": keys.value,
                    }
                )

    async def alter(self, name: str, changes: Mapping[str, Any], check: CheckOptions) -> StoredTopic:
        """Raises ``UnknownTopic``, ``InvalidRequest``, ``Unavailable``, ``TimedOut``, and what ``check`` raises."""
        while True:
            topic = await self.by_name(name)
            options = topic.options.altered(changes)
            check(topic, options)
            if options == topic.options:
                return topic
            command = {"op": "alter_topic", "name": name, "topic_id": topic.id, "options": options.to_dict()}
            try:
                await self._submit({**command, "expected_revision": topic.options.revision})
            except _Stale:
                await self._catch_up()
            else:
                await self._catch_up()
                return await self.by_name(name)

    async def delete(self, name: str, meant: int | None = None) -> StoredTopic:
        """Raises ``UnknownTopic``, ``Unavailable, ``TimedOut``."""
        topic = await self.by_name(name)
        await self._submit({"op": "delete_topic", "name": name, "topic_id": topic.id if meant is None else meant})
        return topic

    async def _submit(self, command: dict[str, Any]) -> dict[str, Any]:
        result = await self._control.submit(command, _COMMAND_TIMEOUT_S)
        if result["ok"]:
            return result
        kind: type[LsmqError] = {
            "topic_exists": TopicExists,
            "unknown_topic": UnknownTopic,
            "not_bootstrapped": Unavailable,
            "stale": _Stale,
        }.get(result["code"], InvalidRequest)
        details = {name: result[name] for name in ("queues", "options") if name in result}
        raise kind(result["message"], topic=command["name"], **details)


def _numbered(topic: StoredTopic) -> int:
    return 0 if topic.named else topic.queues


def _kept(known: tuple[TopicRecord, StoredTopic] | None, agreed: TopicRecord) -> tuple[TopicRecord, StoredTopic]:
    """What is known of a topic, as long as it is what was agreed on. Nearly always it is the very same object."""
    if known is not None and (known[0] is agreed or known[0] == agreed):
        return known
    return agreed, _topic(agreed)


def _topic(agreed: TopicRecord) -> StoredTopic:
    ranges = tuple((run.first, run.end, run.shard) for run in agreed.ranges)
    options = TopicOptions.from_dict(agreed.options)
    return StoredTopic(agreed.id, agreed.name, agreed.queues, options, agreed.created_ms, ranges)
