"""What the API asks of work queues: finds the shards, takes turns between them, and has requests wait."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from lsmq.errors import InvalidRequest, LsmqError, NotLeader, TooManyGroups, UnsupportedFormat
from lsmq.filters import MessageFilter
from lsmq.topics import dead_letter_topic
from lsmq_node.broker import Broker, Hold, ShardPort
from lsmq_node.broker.leader_calls import LeaderCalls
from lsmq_node.broker.letter_targets import Besides, check_letters
from lsmq_node.broker.placement import number_end
from lsmq_node.broker.stages import count_messages
from lsmq_node.groups import DeclaredGroups, GroupService, Mode
from lsmq_node.machines import HOUR_S, MachineService
from lsmq_node.storage import ShardStore, StoredTopic

from .chunks import KEY_PREFIX, SETTINGS, prefix
from .reading import count_new
from .receipts import DeliveryReceipt, decode_receipt, group_hash
from .settings import FairBy, Order, WorkSettings, decode_settings
from .shard_work import ShardWork, ShardWorkState, WorkDelivery, put_deletions
from .tasks import Refusal, WorkCounts

#: Groups by topics and shards, that were used lately.
_MAX_WORKS = 5_000
#: Of the requests of nodes to each other.
OPERATION = "work_settings"
_TIMEOUT_S = 5.0
#: Groups whose work on a topic is forgotten before others on the loop have their turn.
_FORGOTTEN_AT_ONCE = 100

PlacedReceipts = dict[int, dict[int, DeliveryReceipt]]
"""By shard, and by their places in a request."""


class WorkService(MachineService[ShardWork]):
    """One for each node. Loop thread only; ``start`` before anything else, ``stop`` at the end."""

    name = "workqueue"

    def __init__(self, broker: Broker, groups: GroupService) -> None:
        super().__init__(broker, None)
        self.counts = WorkCounts()
        self.declared = DeclaredGroups(groups.declare_anywhere)
        groups.has_work = _has_work
        self._hour_began = asyncio.get_running_loop().time()
        broker.dead_letters = self._dead_letters
        self._letters = LeaderCalls(broker.topology, "work-letters", self._letters_here, _TIMEOUT_S)
        self._settings = LeaderCalls(broker.topology, OPERATION, self._given_here, _TIMEOUT_S)
        self._turn = 0

    # Shards

    async def work(self, group: str, topic: StoredTopic, shard: int) -> ShardWork:
        """The work queue in a shard that this node leads. Makes it, where it is new.

        Raises ``NotLeader``, ``GroupModeMismatch``, ``TooManyGroups`` where all there may be are busy, and what reading
        and writing may raise.
        """
        what = group, topic.id
        if self.find(shard, what) is None and self.count >= _MAX_WORKS and not self.drop_idle():
            raise TooManyGroups(
                f"work queues are busy in {_MAX_WORKS} shards of this node's topics, the limit; use fewer groups",
                limit=_MAX_WORKS,
                group=group,
            )
        work = await self.shard(shard, what, partial(ShardWork, self, group, topic))
        if topic.queues > work.topic.queues:
            work.topic = topic
        return work

    async def made(self, group: str, topic: StoredTopic, shard: int) -> ShardWork | None:
        """The work queue in a shard that this node leads; None where nobody has popped from it yet.

        Raises as :meth:`work`.
        """
        port = self.broker.topology.port(shard)
        port.check_readable()
        is_made = port.store.document(prefix(group, topic.id) + SETTINGS) is not None
        return await self.work(group, topic, shard) if is_made else None

    async def state(self, group: str, topic: StoredTopic, shard: int) -> ShardWorkState:
        """Of a shard that this node leads. Where nobody has popped yet all messages are new. Raises as :meth:`work`,
        and what asking another node may raise."""
        work = await self.made(group, topic, shard)
        if work is not None:
            return await work.state()
        store, new = self.broker.topology.port(shard).store, 0
        if store.has_topic(topic.id):  # else it has just come to this shard
            _, counts = await self.broker.in_readers(lambda: count_new(store, group, topic.id))
            new = int(counts.sum())
        return ShardWorkState(shard, WorkSettings.of(await self.given_elsewhere(group, topic)), new)

    async def given_elsewhere(self, group: str, topic: StoredTopic) -> dict[str, Any]:
        """What was set for the work queue where the topic begins, which a shard that came later sets as well.

        Raises what asking another node may raise.
        """
        given: dict[str, Any] = (await self._asked(group, topic, self.broker.ranges(topic)[0].shard))["given"]
        return given

    async def _asked(self, group: str, topic: StoredTopic, shard: int) -> dict[str, Any]:
        return await self._settings.ask(shard, {"group": group, "topic": topic.id})

    async def _given_here(self, shard: int, asked: dict[str, Any]) -> dict[str, Any]:
        port = self.broker.topology.port(shard)
        key = prefix(str(asked["group"]), int(asked["topic"])) + SETTINGS
        body = port.store.document(key)
        port.check_readable()
        return {"given": {} if body is None else decode_settings(body, key)[0], "known": body is not None}

    def wanted(self, topic: StoredTopic, asked: Sequence[int] | None) -> list[int]:
        """Those of the topic among the shards asked for; those led here, where none are named.

        Raises ``NotLeader``, or ``InvalidRequest`` where the topic has none of the shards.
        """
        topology = self.broker.topology
        holding = self.holding(topic)
        if asked is not None:
            if found := [shard for shard in holding if shard in asked]:
                return found
            raise InvalidRequest(
                f"shards names none of topic {topic.name!r}, which is in {', '.join(map(str, holding))}", field="shards"
            )
        led = [shard for shard in holding if topology.leadership(shard).here]
        if not led:
            shard = holding[0]
            leads = topology.leadership(shard)
            raise NotLeader(
                f"this node leads no shard of topic {topic.name!r}; ask the leaders",
                shard=shard,
                leader=leads.url,
                epoch=leads.epoch,
                sent=False,
            )
        return led

    def holding(self, topic: StoredTopic) -> list[int]:
        """The shards that hold the topic."""
        return sorted({part.shard for part in self.broker.ranges(topic)})

    def leaders(self, shards: Iterable[int], *, others: bool = False) -> set[str]:
        """URLs of those that lead these shards, as far as they are known; of ``others`` alone, without this node."""
        led = map(self.broker.topology.leadership, shards)
        return {leads.url for leads in led if leads.url is not None and not (others and leads.here)}

    def is_work_queue(self, group: str, topic: StoredTopic) -> bool:
        """Whether a shard at this node has the group's work on the topic."""
        key = prefix(group, topic.id) + SETTINGS
        return any(port.store.document(key) is not None for port in self.broker.topology.ports())

    async def is_work_queue_anywhere(self, group: str, topic: StoredTopic) -> bool:
        """Whether a shard has it, whoever leads that. Raises what asking another node may raise."""
        if self.is_work_queue(group, topic):
            return True
        for shard in self.holding(topic):
            if (await self._asked(group, topic, shard)).get("known", False):  # An earlier release does not say.
                return True
        return False

    def forget(self, group: str, shard: int) -> None:
        """Put in line that a shard knows nothing of the group's work, which begins anew behind that."""
        port = self.broker.topology.port(shard)
        self.forget_all(lambda number, what: number == shard and what[0] == group)
        put_deletions(port, [key for key, _ in port.store.documents(prefix(group))])

    def look(self) -> None:
        now = asyncio.get_running_loop().time()
        if now - self._hour_began >= HOUR_S:
            self._hour_began = now
            for port in self.broker.topology.ports():
                if self.broker.topology.leadership(port.number).here:
                    self.background.start(self._forget_deleted(port))

    async def _forget_deleted(self, port: ShardPort) -> None:
        """Put in line that a shard knows nothing of the work on topics that were deleted."""
        with suppress(LsmqError):  # Another hour.
            places = await self.broker.in_readers(lambda: _places(port.store))
            left = [place for place in places if not port.store.has_topic(place[1])]
            for at in range(0, len(left), _FORGOTTEN_AT_ONCE):
                port.check_readable()
                self._forget_here(port, left[at : at + _FORGOTTEN_AT_ONCE])
                await asyncio.sleep(0)

    def _forget_here(self, port: ShardPort, places: Sequence[tuple[str, int]]) -> None:
        gone = frozenset(places)
        self.forget_all(lambda number, what: number == port.number and what in gone)
        put_deletions(port, [key for place in places for key, _ in port.store.documents(prefix(*place))])

    # Delivering and settling

    async def pop(
        self,
        group: str,
        topic: StoredTopic,
        shards: Sequence[int],
        *,
        limit: int,
        max_bytes: int,
        visibility_ms: int | None,
        wait_ms: int,
        order: Order | None,
        wanted: MessageFilter | None,
        gone: Callable[[], bool],
        hold: Hold,
    ) -> list[WorkDelivery]:
        """Up to ``limit`` messages of these shards that are ``wanted``, waiting up to ``wait_ms`` for the first.

        Nothing is delivered to whom is ``gone``. ``hold`` reserves memory for what is read. ``order``: what the caller
        relies on. Raises as :meth:`work`, ``UnknownTopic``, ``Unavailable``, ``InvalidRequest`` for another order, and
        with ``wanted`` as :meth:`.Picks.of`.
        """
        await self.declared.again(group, Mode.WORK_QUEUE)
        loop = asyncio.get_running_loop()
        deadline = loop.time() + wait_ms / 1000
        while True:
            works = [await self._work_to_pop(group, topic, shard) for shard in shards]
            for work in works:
                if order is not None and work.settings.order is not order:
                    raise _other_order(work, order)
            try:
                found = await self._take(works, limit, max_bytes, visibility_ms, wanted, gone, hold)
                if found or wait_ms == 0 or loop.time() >= deadline or self.held.closed or gone():
                    return found
                await self._wait(works, wanted, deadline)
            finally:
                for work in works:
                    if work.is_held(wanted) and work.available(wanted):
                        work.wake_one(wanted)
            topic = await self.broker.topic_by_id(topic.id)

    async def _work_to_pop(self, group: str, topic: StoredTopic, shard: int) -> ShardWork:
        """As :meth:`work`. One that nobody has configured is not made where its dead letters would come back by the
        options of topics: raises ``InvalidRequest``."""
        if self.find(shard, (group, topic.id)) is None and await self.made(group, topic, shard) is None:
            settings = WorkSettings.of(await self.given_elsewhere(group, topic))
            check_letters(self.broker, topic.name, "dead_letter", settings.dead_letter_topic(topic.name))
        return await self.work(group, topic, shard)

    async def _take(
        self,
        works: Sequence[ShardWork],
        limit: int,
        max_bytes: int,
        visibility_ms: int | None,
        wanted: MessageFilter | None,
        gone: Callable[[], bool],
        hold: Hold,
    ) -> list[WorkDelivery]:
        found: list[WorkDelivery] = []
        size_bytes = 0
        self._turn += 1
        turn = self._turn % len(works) if works else 0
        for work in [*works[turn:], *works[:turn]]:
            try:
                work.check()
                if not work.available(wanted):
                    continue
                hold.resize(max_bytes)
                visible_ms = work.settings.visibility_ms if visibility_ms is None else visibility_ms
                taken = await work.take(limit - len(found), max_bytes - size_bytes, visible_ms, gone, wanted)
            except LsmqError:
                if not found:
                    raise
                break  # What was taken is hidden from others: it is answered.
            except BaseException:  # Who waits for it is gone.
                self.take_back(works[0].group, works[0].topic, found)
                raise
            finally:
                hold.resize_made(size_bytes)
            found += taken
            size_bytes += sum(delivery.record.size_bytes for delivery in taken)
            hold.resize_made(size_bytes)
            if len(found) >= limit or size_bytes >= max_bytes:
                break
        if found:
            count_messages(len(found))
            self.broker.reads.flow.add(works[0].topic.name, len(found), size_bytes)
        return found

    def take_back(self, group: str, topic: StoredTopic, deliveries: Sequence[WorkDelivery]) -> None:
        """What a pop has taken, and cannot be answered: it comes again at once, and the delivery does not count."""
        for shard in {delivery.shard for delivery in deliveries}:
            if (work := self.find(shard, (group, topic.id))) is not None:
                work.take_back([delivery for delivery in deliveries if delivery.shard == shard])

    async def _wait(self, works: Sequence[ShardWork], wanted: MessageFilter | None, deadline: float) -> None:
        """Until one of them has something, or ``deadline``. Raises ``Unavailable`` at the limit of held polls."""
        if any(work.available(wanted) for work in works):
            return
        with self.broker.waiters.held():
            await self.held.wait([key for work in works for key in ((work.key,), (work.key, wanted))], deadline)

    def receipts(self, group: str, topic: StoredTopic, texts: Sequence[str]) -> PlacedReceipts:
        """Those that are receipts of the group and topic, with their places among the texts, by shard."""
        owner, end = group_hash(group), number_end(topic, self.broker.topology.home_shards)
        found: PlacedReceipts = {}
        for at, text in enumerate(texts):
            receipt = decode_receipt(text, owner, topic.id)
            if receipt is not None and receipt.queue < end:
                found.setdefault(self.broker.shard_of(topic, receipt.queue), {})[at] = receipt
        return found

    async def settle(
        self,
        group: str,
        topic: StoredTopic,
        placed: PlacedReceipts,
        how: Callable[[ShardWork], Callable[[DeliveryReceipt, int], Refusal | None]],
    ) -> dict[int, Refusal | None]:
        """What became of each receipt, by its place; durable on return. ``how`` chooses what is done with one.

        Raises ``NotLeader``, before anything is done, where one belongs to a shard that is led elsewhere.
        """
        works = {shard: await self.work(group, topic, shard) for shard in placed}
        refusals: dict[int, Refusal | None] = {}
        for shard, work in works.items():
            settled = await work.settle(list(placed[shard].values()), how(work))
            refusals |= zip(placed[shard], settled, strict=True)
        return refusals

    # Settings

    async def configure(
        self, group: str, topic: StoredTopic, shards: Sequence[int], given: Mapping[str, Any]
    ) -> list[ShardWork]:
        """Set how the work queue behaves in these shards. Raises ``InvalidTopicName``, ``InvalidRequest`` for a topic
        of dead letters that has too few queues or from which they come back, and for settings that do not go
        together."""
        settings = WorkSettings.of(given)
        settings.check()
        if topic.named and settings.weights and settings.fair_by is FairBy.QUEUE:
            raise InvalidRequest(
                f"weights go by numbers of queues, and topic {topic.name!r} has named ones; tell tenants by key or tag "
                "(fair_by)",
                field="weights",
            )
        besides = await self._dead_letters()
        check_letters(self.broker, topic.name, "dead_letter", settings.dead_letter_topic(topic.name), besides)
        works = [await self.work(group, topic, shard) for shard in shards]
        for work in works:
            await work.put_settings(given)
        return [await self.work(group, topic, shard) for shard in shards]

    async def _dead_letters(self) -> Besides:
        """Where dead letters of topics go, by all work on them; by that in shards of others, as far as they answer."""
        here = {port.number for port in self.broker.topology.ports()}
        others = (shard for shard in range(self.broker.topology.shard_count) if shard not in here)
        answers = await asyncio.gather(*(self._letters.ask(shard, {}) for shard in others), return_exceptions=True)
        ports = self.broker.topology.ports()
        told = [*await self.broker.in_readers(lambda: [row for port in ports for row in _letters_in(port.store)])]
        told += [row for each in answers if isinstance(each, dict) for row in each["letters"]]
        found: dict[int, set[str | None]] = {}
        for topic_id, target in told:
            found.setdefault(topic_id, set()).add(target)
        return lambda topic: {each or dead_letter_topic(topic.name) for each in found.get(topic.id, ())}

    async def _letters_here(self, shard: int, asked: dict[str, Any]) -> dict[str, Any]:
        port = self.broker.topology.port(shard)
        letters = await self.broker.in_readers(lambda: _letters_in(port.store))
        port.check_readable()
        return {"letters": letters}


def _letters_in(store: ShardStore) -> list[tuple[int, str | None]]:
    """Topics, by their ids, that there is work on in a shard, and where its dead letters go; None: where they go unless
    told. In any thread."""
    found = set[tuple[int, str | None]]()
    for key, body in store.documents_of_each(KEY_PREFIX, 2, SETTINGS):
        with suppress(UnsupportedFormat):  # A later release has configured it.
            given, _ = decode_settings(body, key)
            found.add((int(key.split("/")[2]), given.get("dead_letter")))
    return list(found)


def _places(store: ShardStore, group: str | None = None) -> list[tuple[str, int]]:
    """Groups, and the ids of topics that they work on in a shard; of one group, where it is named."""
    start, depth = (KEY_PREFIX, 2) if group is None else (prefix(group), 1)
    found = (key.removeprefix(KEY_PREFIX).split("/") for key, _ in store.documents_of_each(start, depth, SETTINGS))
    return [(name, int(topic_id)) for name, topic_id, _ in found]


def _has_work(store: ShardStore, group: str) -> bool:
    return any(store.has_topic(topic_id) for _, topic_id in _places(store, group))


def _other_order(work: ShardWork, wanted: Order) -> InvalidRequest:
    return InvalidRequest(
        f"order is {wanted.value!r}, and the work queue of group {work.group!r} on topic {work.topic.name!r} has "
        f"{work.settings.order.value!r} in shard {work.port.number}; configure it (order), or leave order out",
        field="order",
        group=work.group,
        topic=work.topic.name,
    )
