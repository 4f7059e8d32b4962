"""The model's other side: one client of a cluster in a world, which does what a plan says and tells the model."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from itertools import product
from typing import Any

from lsmq import Client, Consumer, DelayedMessages, Message, Producer, WorkQueue, runtime
from lsmq._retries import Deadline
from lsmq.errors import AlreadyDelivered, RequestTooLarge, TimedOut
from lsmq.messages import due_of_id, encode_header
from lsmq_lab.world.machine import world
from lsmq_lab.world.scheduler import SimulatedProcess
from lsmq_lab.world.simulated_cluster import SimulatedCluster, SimulatedNode
from lsmq_lab.world.uses.use import all_of, read_to
from lsmq_node.workqueue.receipts import decode_receipt, group_hash

from .asking import Asking
from .leaving import TOPICS as LEAVING_TOPICS
from .leaving import Leaving
from .model import BYTE_QUEUES, MOST_BYTES, PIECE_BYTES, TOPICS, WEIGHTS, Later, Model, Row

#: A step of a plan: what is done, and three numbers that say how.
Step = tuple[str, int, int, int]
#: Shard, node and epoch of each that leads.
Leaders = frozenset[tuple[int, str, int]]
KEYS = (None, "a", "b", "c")
TAGS = (None, "x", "y")
NAMES = ("ann", "bob", "c.d")
_LONG_MS, _SHORT_MS, _SOON_MS, _DAY_MS = 3_600_000, 300, 1_500, 86_400_000
#: Of messages to queues that hold so many bytes.
_SIZES = (20, 21, 60, 150, 333, 600, MOST_BYTES, MOST_BYTES + 1)
_JUMPS_S = (-2.0, -0.5, 1.0, 2.5)
#: All clocks are right by then, stamps have caught up, and background work had its turns.
_SETTLE_S = 8.0
#: A leader has counted by then what queues had that were written to.
_COUNT_S = 3.0
_SETTINGS = {"retention_interval_ms": 300}


class Player:
    """Carries out steps. Each asserts that the cluster did as the model says."""

    def __init__(self, cluster: SimulatedCluster, client: Client) -> None:
        self.cluster, self.client, self.model = cluster, client, Model()
        self.serial = 0
        self.producers: dict[str, Producer] = {}
        self.delayed = DelayedMessages(client, "later")
        self.leaving = Leaving(client, self.producers, self._all_of, self._ask_crew)
        self.asking = Asking(client, self.model, self._all_of)
        #: Of each queue that holds so many bytes, the leaders that had counted it.
        self.counted_by: dict[tuple[str, int], Leaders] = {}

    async def play(self, steps: Sequence[Step]) -> None:
        for topic, options in {**TOPICS, **LEAVING_TOPICS}.items():
            await self.client.create_topic(topic, **options)
            self.producers[topic] = Producer(self.client, topic, linger_ms=0)
            await self.producers[topic].start()
        self.producers["quick"] = Producer(self.client, "tight", linger_ms=0, deadline_ms=700)
        await self.producers["quick"].start()
        self.counted_by = dict.fromkeys(BYTE_QUEUES, self._leaders())  # There is nothing in them.
        await WorkQueue(self.client, "jobs", "crew").configure(order="priority", max_deliveries=1_000)
        shared = WorkQueue(self.client, "shared", "crew")
        await shared.configure(fair_by="key", weights=WEIGHTS, max_deliveries=1_000)
        await self.leaving.start()
        for name, *numbers in steps:
            await getattr(self, f"_{name}")(*numbers)
        await self._settle(0, 0, 0)
        await self._look_at_all(settled=True)
        for producer in self.producers.values():
            await producer.close()

    # What a client does

    async def _send(self, where: int, how: int, what: int) -> None:
        topic = ("log", "log", "ring", "full", "once", "table", "jobs")[where % 7]
        queue = how % TOPICS[topic]["queues"]
        self.serial += 1
        row = Row(self.serial, KEYS[what % 4], TAGS[what % 3], (what % 4 // 2, what % 2))
        fields: dict[str, Any] = {"key": row.key, "tag": row.tag, "queue": queue}
        fields["priority"], fields["subpriority"] = row.priority
        dedupe_id = f"{how % 3}" if topic == "once" else None
        if topic == "log":
            lives_ms = (None, None, _LONG_MS, _SHORT_MS)[how // 2 % 4]
            row.expires = row.may_be_gone = lives_ms == _SHORT_MS
            if lives_ms is not None and where % 7:
                fields["ttl_ms"] = lives_ms
            elif lives_ms is not None:
                fields["expires_at_ms"] = runtime.wall_ms() + lives_ms
        if dedupe_id is not None:
            fields["dedupe_id"] = dedupe_id
        body: str | None = f"{row.number}"
        if topic == "table" and row.key is not None and how % 3 == 0:
            row.deletes_key, fields["delete"], body = True, True, ""
        fields["properties"] = {"number": f"{row.number}"}
        sent = await self.producers[topic].send_and_wait(body or b"", **fields)
        offset = None if sent.dropped else sent.offset
        self.model.sent(topic, queue, row, offset, dedupe_id=dedupe_id, again=sent.duplicate)

    async def _read(self, where: int, how: int, what: int) -> None:
        topic = ("log", "ring", "full", "once", "ring_bytes", "full_bytes", "tight")[where % 7]
        tag, least = TAGS[what % 3], self.serial // 2
        for queue in range(TOPICS[topic]["queues"]):
            picks: dict[str, Any] = {}
            if how % 3 == 1 and tag is not None:
                picks = {"tag": tag}
            elif how % 3 == 2:
                picks = {"filter": f"number > {least} AND (priority < 1 OR subpriority < 1)"}
            counted = topic == "ring_bytes" and self._counted(topic, queue)
            messages = await self._read_queue(topic, queue, picks)

            def wanted(row: Row, picks: dict[str, Any] = picks) -> bool:
                if "tag" in picks:
                    return row.tag == tag
                return "filter" not in picks or (row.number > least and 0 in row.priority)

            came = [(message.offset, int(message.properties["number"])) for message in messages]
            self.model.read(topic, queue, came, wanted)
            if counted:
                self.model.within_bytes(topic, queue, [offset for offset, _ in came])

    async def _all_of(self, topic: str, queue: int, **options: Any) -> list[Message]:
        return await self._read_queue(topic, queue, options)

    async def _read_queue(self, topic: str, queue: int, picks: Mapping[str, Any]) -> list[Message]:
        """To where it ends now."""
        found: list[Message] = []
        end = (await self.client.offsets(topic)).latest[queue]
        consumer = Consumer(self.client, topic, queues=[queue], start="earliest", wait_ms=200, **picks)
        async with consumer:
            while consumer.positions.get(queue, 0) < end:
                messages = await consumer.poll(timeout_ms=1_000)
                found += messages
                if not messages and (await self.client.offsets(topic)).earliest[queue] >= end:
                    break  # It went meanwhile, and a reader moves with what comes.
        return found

    # Queues that hold so many bytes

    async def _fill(self, where: int, how: int, what: int) -> None:
        topic, queue = BYTE_QUEUES[where % len(BYTE_QUEUES)]
        await self._put(topic, queue, _SIZES[what % len(_SIZES)])

    async def _put(self, topic: str, queue: int, size_bytes: int) -> None:
        """Into ``tight`` only what surely has room, or has none: what is refused is tried again for so long."""
        counted, room = self._counted(topic, queue), self.model.room(topic, queue, size_bytes)
        if topic == "tight" and room is not True and (room is None or not counted):
            return
        self.serial += 1
        properties = {"number": f"{self.serial}"}
        body = b"x" * (size_bytes - len(encode_header(None, None, properties)))
        producer = self.producers["quick" if topic == "tight" and room is False else topic]
        try:
            sent = await producer.send_and_wait(body, queue=queue, properties=properties)
            offset = None if sent.dropped else sent.offset
        except (TimedOut, RequestTooLarge):
            await asyncio.sleep(_COUNT_S)
            known, (latest,) = self.model.queues[topic, queue], (await self.client.offsets(topic)).latest
            offset = known.end if latest > known.end else None
        counted &= self._counted(topic, queue)
        self.model.filled(topic, queue, Row(self.serial, size_bytes=size_bytes), offset, counted=counted)

    async def _make_room(self, where: int, how: int, what: int) -> None:
        topic, queue = BYTE_QUEUES[where % len(BYTE_QUEUES)]
        known = self.model.queues[topic, queue]
        before = min(known.rows, default=known.end) + what % 4
        if before <= known.end:
            await self.client.trim_topic(topic, {queue: before})
            known.remove(range(before))

    async def _count(self) -> None:
        """Have leaders count what was there before them, as they do once a queue is written to; see that they did."""
        leaders = self._leaders()
        for topic, queue in BYTE_QUEUES:
            if not self._counted(topic, queue):
                known = self.model.queues[topic, queue]
                if topic == "tight" and known.rows:  # What is refused would not have it counted.
                    await self._have_room(queue)
                await self._put(topic, queue, _SIZES[0])
        await asyncio.sleep(_COUNT_S)
        if leaders == self._leaders():
            self.counted_by = dict.fromkeys(BYTE_QUEUES, leaders)
        for topic, queue in BYTE_QUEUES:
            held = self.model.queues[topic, queue].size_bytes()
            for size_bytes in (MOST_BYTES - held - PIECE_BYTES, MOST_BYTES - held + 1, MOST_BYTES):
                if self._counted(topic, queue) and size_bytes >= _SIZES[0]:
                    await self._put(topic, queue, size_bytes)

    async def _have_room(self, queue: int) -> None:
        known = self.model.queues["tight", queue]
        while self.model.room("tight", queue, _SIZES[0]) is not True:
            known.remove([min(known.rows)])
        await self.client.trim_topic("tight", {queue: min(known.rows, default=known.end)})

    def _counted(self, topic: str, queue: int) -> bool:
        return self.counted_by.get((topic, queue)) == self._leaders()

    def _leaders(self) -> Leaders:
        """Who leads which shard, since which epoch."""
        replicas = self.cluster.replicas()
        return frozenset((each.shard, node.id, each.epoch) for node, each in replicas if each.serving)

    async def _find(self, where: int, how: int, what: int) -> None:
        key = KEYS[1 + where % 3]
        assert key is not None
        found: list[tuple[int, int]] = []
        after: str | None = None
        while True:
            page = await self.client.find_messages("log", key, limit=1 + how % 5, after=after)
            found += [(message.queue, message.offset) for message in page.messages]
            if (after := page.next) is None:
                break
        self.model.found(key, found)
        latest = await self.client.latest("table", key)
        self.model.latest(key, None if latest is None else int(latest.properties["number"]))

    async def _ask(self, where: int, how: int, what: int) -> None:
        """In one of the other ways in which messages are asked for."""
        ways = (
            lambda: self.asking.by_id(how, what),
            lambda: self.asking.by_filter(how, what),
            lambda: self.asking.by_time(how, what),
            lambda: self.asking.by_pattern(how),
            self.asking.as_changes,
            lambda: self.asking.of_followers(how, what),
        )
        await ways[where % len(ways)]()

    async def _delete(self, where: int, how: int, what: int) -> None:
        queue = where % 2
        known = self.model.queues["log", queue]
        if not known.end:
            return
        if how % 3 == 0:
            await self.client.trim_topic("log", {queue: what % (known.end + 1)})
            known.remove(range(what % (known.end + 1)))
        elif how % 9 == 1:
            await self.client.purge_topic("log", queues=[queue])
            known.remove(range(known.end))
        else:
            await self.client.delete_messages("log", [(queue, what % known.end)])
            known.remove([what % known.end])

    async def _keep(self, where: int, how: int, what: int) -> None:
        """A queue of the log keeps so many from then on."""
        known = self.model.queues["log", where % 2]
        known.keeps = None if how % 3 == 0 else 1 + what % 4
        await self.client.alter_queue("log", where % 2, retention_messages=known.keeps)
        known.loosen()

    async def _name(self, where: int, how: int, what: int) -> None:
        name = NAMES[where % 3]
        if how % 4 == 0:
            await self.client.delete_queue("names", name, missing_ok=True)
            self.model.names.pop(name, None)
        else:
            self.serial += 1
            await self.producers["names"].send_and_wait(f"{self.serial}", queue=name)
            self.model.names.setdefault(name, []).append(self.serial)

    async def _list(self, where: int, how: int, what: int) -> None:
        found: dict[str, list[int]] = {}
        for queue in await self.client.queues("names"):
            consumer = Consumer(self.client, "names", queues=[queue.name], start="earliest", wait_ms=200)
            messages = await read_to(consumer, {queue.number: queue.latest} if queue.count else {})
            found[queue.name] = [int(message.text()) for message in messages]
        self.model.named(found)

    async def _later(self, where: int, how: int, what: int) -> None:
        model, soon = self.model, how % 2 == 0
        delay_ms = 1 + what * 10 % _SOON_MS if soon else _DAY_MS + what
        if where % 3 == 0 or not model.later:
            self.serial += 1
            sent = await self.producers["later"].send_and_wait(f"{self.serial}", delay_ms=delay_ms)
            assert sent.due_ms is not None
            model.later.append(Later(self.serial, sent.id, soon, sent.due_ms))
            return
        place = what % len(model.later)
        message = model.later[place]
        try:
            if where % 3 == 1:
                await self.delayed.cancel(message.id)
                model.is_cancelled(place, delivered=False)
            else:
                moved = await self.delayed.reschedule(message.id, delay_ms=delay_ms)
                message.id, message.soon, message.due_ms = moved.id, soon, due_of_id(moved.id) or 0
        except AlreadyDelivered:
            model.is_cancelled(place, delivered=True)

    async def _wait_for_later(self, where: int, how: int, what: int) -> None:
        await self._look_at_later(settled=False)

    async def _share(self, where: int, how: int, what: int) -> None:
        """Some tenants get work, or some of it is done."""
        if where % 2:
            for key in dict.fromkeys((KEYS[how % 4], KEYS[what % 4])):
                for _ in range(1 + what % 3):
                    self.serial += 1
                    row = Row(self.serial, key)
                    sent = await self.producers["shared"].send_and_wait(f"{row.number}", key=key, queue=0)
                    self.model.sent("shared", 0, row, sent.offset, dedupe_id=None, again=sent.duplicate)
            return
        for _ in range(1 + how % 4):
            await self._pop_shared(done=what % 4 != 0)

    async def _pop_shared(self, *, done: bool) -> None:
        turns, topic = self.model.turns, await self.client.topic("shared")
        found = (await self._ask_crew("pop", "shared", max=1, wait_ms=5_000 if turns.open else 0))["messages"]
        if not found:
            assert not turns.open, f"nobody was given the work {turns.open}"
            return
        (task,) = found
        receipt = decode_receipt(task["receipt"], group_hash("crew"), topic.id)
        assert receipt is not None
        await self._settle_task(task, "shared", done=done)
        turns.popped(task["offset"], receipt.token >> 32, done=done)

    async def _pop(self, where: int, how: int, what: int) -> None:
        found = (await self._ask_crew("pop", "jobs", max=1, wait_ms=5_000 if self.model.open else 0))["messages"]
        if not found:
            self.model.popped(None, None, done=False)
            return
        (task,), done = found, how % 3 != 0
        await self._settle_task(task, "jobs", done=done)
        self.model.popped((task["queue"], task["offset"]), int(task["properties"]["number"]), done=done)

    async def _settle_task(self, task: Mapping[str, Any], name: str, *, done: bool) -> None:
        more = {} if done else {"delay_ms": 0}
        settled = await self._ask_crew("ack" if done else "nack", name, receipts=[task["receipt"]], **more)
        assert settled["refused"] == []

    async def _ask_crew(self, what: str, name: str, **fields: Any) -> Any:
        """Without the client's consumer, which asks ahead: what it has then is not the highest by now."""
        topic, path = await self.client.topic(name), f"/v1/groups/crew/{what}"
        value = {"topic": name, **fields}
        shard, deadline = topic.route(0).shard, Deadline(60_000)
        answer = await self.client._router.ask_leader(topic, shard, "POST", path, value=value, deadline=deadline)
        return answer.value()

    async def _commit(self, where: int, how: int, what: int) -> None:
        queue = where % 2
        end = self.model.queues["log", queue].end
        offset = what % (end + 1)
        await self.client.commit_offsets("readers", "log", {queue: offset}, reset=how % 2 == 0)
        before = self.model.committed.get(queue, 0)
        self.model.committed[queue] = offset if how % 2 == 0 else max(before, offset)
        assert await self.client.committed_offsets("readers", "log") == self.model.committed

    # How messages leave

    async def _move(self, where: int, how: int, what: int) -> None:
        self.serial += 1
        await self.leaving.move(self.serial, how, what)

    async def _eat(self, where: int, how: int, what: int) -> None:
        self.serial += 1
        await self.leaving.eat(self.serial, where, how, what)

    async def _doom(self, where: int, how: int, what: int) -> None:
        self.serial += 1
        await self.leaving.doom(self.serial, where, how)

    async def _empty(self, where: int, how: int, what: int) -> None:
        self.serial += 1
        await self.leaving.empty(self.serial, where, how)

    async def _see_who_left(self, where: int, how: int, what: int) -> None:
        await self.leaving.look(settled=False)

    # What befalls the cluster

    async def _kill(self, where: int, how: int, what: int) -> None:
        """The leader dies, or loses its power, and comes back later."""
        node = self.cluster.leader()
        self._do(node.cut_power if how % 2 else node.kill)
        await asyncio.sleep(0.01)
        self._do(node.start, 0.3 + what % 10 / 5)

    async def _blackout(self, where: int, how: int, what: int) -> None:
        """All lose their power at once."""
        for node in self.cluster.nodes:
            self._do(node.cut_power)
        await asyncio.sleep(0.01)
        for node in self.cluster.nodes:
            self._do(node.start)

    async def _jump(self, where: int, how: int, what: int) -> None:
        """A clock is wrong from then on, until all settles."""
        node = self.cluster.nodes[where % 3]
        self._set_clock(node, _JUMPS_S[what % 4])

    async def _settle(self, where: int, how: int, what: int) -> None:
        for node in self.cluster.nodes:
            self._set_clock(node, 0.0)
        await self.leaving.wake()
        await asyncio.sleep(_SETTLE_S)
        self.model.settle()
        await self.leaving.look(settled=True)
        await self._count()

    def _do(self, what: Any, after_s: float = 0.0) -> None:
        self.cluster.world.scheduler.call_later(after_s, what)

    @staticmethod
    def _set_clock(node: SimulatedNode, wrong_s: float) -> None:
        node.wrong_s = wrong_s
        if node.process is not None:
            node.process.wrong_s = wrong_s

    # All there is

    async def _look_at_later(self, *, settled: bool) -> None:
        """Nothing is sent meanwhile; what comes between the two looks was seen waiting, or comes with the second."""
        pending = {int(each.message.text()) async for each in self.delayed.read()}
        came = {int(message.text()): message.stored_ms for message in await all_of(self.client, "later")}
        self.model.came_later(came.items(), pending - came.keys(), settled=settled)

    async def _look_at_all(self, *, settled: bool) -> None:
        for where in range(7):
            await self._read(where, 0, 0)
        for where in range(3):
            await self._find(where, 4, 0)
        for where, how in product(range(6), (0, 5)):
            await self._ask(where, how, 0)
        await self._list(0, 0, 0)
        await self._look_at_later(settled=settled)
        while self.model.open:
            await self._pop(0, 1, 0)
        while self.model.turns.open:
            await self._pop_shared(done=True)


def play(seed: int, steps: Sequence[Step]) -> None:
    """Play steps in a world of their own. Raises what went wrong."""
    with world(seed, preemption=(0.0, 0.05)[seed % 2]) as made:
        cluster = SimulatedCluster(made, shards=1 + seed % 2, settings=_SETTINGS)
        with cluster.installed():
            for node in cluster.nodes:
                node.start()
            process: SimulatedProcess = made.process("client", "10.0.2.1", steady_s=9_000.0)

            async def use() -> None:
                async with Client(cluster.urls) as client:
                    await Player(cluster, client).play(steps)

            made.run_async(use, process=process, limit_s=600.0)
        assert cluster.problems == []
