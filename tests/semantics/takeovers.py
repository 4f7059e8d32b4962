"""Who goes on for another: producers of a group by positions, sequences of transactions, and ids of some seconds."""

from __future__ import annotations

from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from lsmq import GroupProducer, TransactionalProducer, runtime
from lsmq import transactions as given
from lsmq.errors import LsmqError, ProducerFenced, SequenceTakenOver, TransactionDecided

from .area import Area, Life


async def refused(what: Awaitable[Any], error: type[LsmqError]) -> None:
    try:
        await what
    except error:
        return
    raise AssertionError(f"who was replaced goes on, and is not told {error.code}")


@dataclass(frozen=True)
class Row:
    """Of an outbox: what is sent of it is always the same."""

    position: int
    number: int
    queue: int


class Outbox(Area):
    """``rows``: all are stored. ``producer``: the last that took over; ``fenced``: those before that do not know it."""

    topics: ClassVar[Mapping[str, Mapping[str, Any]]] = {"outbox": {"queues": 2}}
    deeds = ("put", "put", "put", "take_over", "go_on", "look")

    def __init__(self, life: Life) -> None:
        super().__init__(life)
        self.rows: list[Row] = []
        self.fenced: list[GroupProducer] = []

    async def start(self) -> None:
        self.producer = GroupProducer(self.client, "outbox", "movers", linger_ms=0)
        await self.producer.start()

    async def put(self, where: int, how: int, what: int) -> None:
        """New rows, with gaps between their positions."""
        for at in range(1 + how % 3):
            row = self._next(1 + what % 3, (where + at) % 2)
            sent = await self._send(self.producer, row)
            assert not sent.duplicate, f"{row} was taken for a repeat"
            self.rows.append(row)

    def _next(self, step: int, queue: int) -> Row:
        last = self.rows[-1].position if self.rows else -1
        return Row(last + step, self.life.number(), queue)

    @staticmethod
    async def _send(producer: GroupProducer, row: Row) -> Any:
        return await (await producer.send(f"{row.number}", position=row.position, queue=row.queue))

    async def take_over(self, where: int, how: int, what: int) -> None:
        """And send again, from anywhere before."""
        self.fenced.append(self.producer)
        self.producer = GroupProducer(self.client, "outbox", "movers", linger_ms=0)
        await self.producer.start()
        topic, last = await self.client.topic("outbox"), dict[int, int]()
        for row in self.rows:
            last[topic.route(row.queue).shard] = row.position
        shards = [topic.route(queue).shard for queue in (0, 1)]
        least = None if any(shard not in last for shard in shards) else min(last.values())
        assert self.producer.last_acknowledged() == least, f"{self.producer.last_acknowledged()}, not {least}"
        for queue in (0, 1):
            assert self.producer.last_acknowledged(queue=queue) == last.get(shards[queue])
        first = max(0, len(self.rows) - how % 6)
        for row in self.rows[first:]:
            sent = await self._send(self.producer, row)
            assert sent.duplicate, f"{row} was stored again"

    async def go_on(self, where: int, how: int, what: int) -> None:
        """One before goes on, as it only hung."""
        if self.fenced:
            producer = self.fenced.pop(what % len(self.fenced))
            await refused(self._send(producer, self._next(1, where % 2)), ProducerFenced)
            await producer.abort()

    async def look(self, where: int, how: int, what: int) -> None:
        for queue in (0, 1):
            came = [int(each.text()) for each in await self.life.read("outbox", queue)]
            assert came == [row.number for row in self.rows if row.queue == queue], "each row is stored once, in order"

    async def finish(self) -> None:
        await self.look(0, 0, 0)
        for producer in (*self.fenced, self.producer):
            await producer.abort()


class Copied(Area):
    """A sequence of transactions, which one member after another goes on with.

    ``numbers``: what is committed. ``open``: what is not decided of whoever has it, with its number and position;
    ``before``: of those who had it, with what they had open.
    """

    topics: ClassVar[Mapping[str, Mapping[str, Any]]] = {"copied": {"queues": 1}}
    deeds = ("copy", "copy", "copy", "commit", "commit", "take", "take", "go_on", "look")

    def __init__(self, life: Life) -> None:
        super().__init__(life)
        self.members: Sequence[TransactionalProducer] = ()
        self.sequence: given.Sequence | None = None
        self.numbers: list[int] = []
        self.open: tuple[given.Transaction, int] | None = None
        self.before: list[tuple[given.Sequence, given.Transaction | None]] = []

    async def start(self) -> None:
        self.members = [TransactionalProducer(self.client, "copiers") for _ in range(2)]
        for member in self.members:
            await member.start()

    @property
    def position(self) -> str | None:
        return f"{self.numbers[-1]}" if self.numbers else None

    async def copy(self, where: int, how: int, what: int) -> None:
        """A step, which is as far as the message it sends."""
        if self.sequence is None or self.open is not None:
            return
        number = self.life.number()
        transaction = self.sequence.transaction(position=f"{number}")
        await transaction.send("copied", f"{number}")
        self.open = transaction, number
        if how % 3:
            await self.commit(0, 1, 0)

    async def commit(self, where: int, how: int, what: int) -> None:
        if self.open is None or self.sequence is None:
            return
        (transaction, number), self.open = self.open, None
        if how % 4 == 0:
            await transaction.roll_back()
        else:
            await transaction.commit()
            self.numbers.append(number)
        assert self.sequence.position == self.position

    async def take(self, where: int, how: int, what: int) -> None:
        """What is open of it is rolled back."""
        if self.sequence is not None:
            self.before.append((self.sequence, None if self.open is None else self.open[0]))
        self.open = None
        self.sequence = await self.members[where % 2].take("copies")
        assert self.sequence.position == self.position, f"it goes on at {self.sequence.position}, not {self.position}"

    async def go_on(self, where: int, how: int, what: int) -> None:
        """Who had it before can neither commit nor begin any more."""
        if not self.before:
            return
        sequence, transaction = self.before.pop(what % len(self.before))
        if transaction is not None:
            await refused(transaction.commit(), TransactionDecided)
        await refused(sequence.transaction(position="elsewhere").send("copied", "0"), SequenceTakenOver)

    async def look(self, where: int, how: int, what: int) -> None:
        """What was committed last may come in a moment, where that was not waited for."""
        await self._look(settled=False)

    async def _look(self, *, settled: bool) -> None:
        came = [int(each.text()) for each in await self.life.read("copied", 0)]
        assert came == self.numbers[: len(came)], f"{came} came of {self.numbers}"
        assert not settled or came == self.numbers, f"{self.numbers[len(came) :]} are not there"

    async def settled(self) -> None:
        await self._look(settled=True)

    async def finish(self) -> None:
        for member in self.members:
            await member.close()


_WINDOW_MS = 4_000
#: What clocks may be wrong by, and a little more.
_WRONG_MS = 2_600


class Briefly(Area):
    """Ids that are remembered for some seconds.

    ``ids``: offset of the last message with each, when that was sent, and whether all has settled since.
    """

    topics: ClassVar[Mapping[str, Mapping[str, Any]]] = {"briefly": {"queues": 1, "dedupe_window_ms": _WINDOW_MS}}
    deeds = ("send", "send", "send", "repeat")

    def __init__(self, life: Life) -> None:
        super().__init__(life)
        self.numbers: list[int] = []
        self.ids: dict[str, tuple[int, int, bool]] = {}

    async def repeat(self, where: int, how: int, what: int) -> None:
        """The last of them at once."""
        await self._send(next(reversed(self.ids), "0"))

    async def send(self, where: int, how: int, what: int) -> None:
        for at in range(1 + how % 2):
            await self._send(f"{(what + at * (where % 2)) % 4}")

    async def _send(self, dedupe_id: str) -> None:
        number, began_ms = self.life.number(), runtime.wall_ms()
        sent = await self.life.send("briefly", f"{number}", queue=0, dedupe_id=dedupe_id)
        now_ms = runtime.wall_ms()
        if (known := self.ids.get(dedupe_id)) is None:
            assert not sent.duplicate, f"{dedupe_id} was taken for a repeat"
        else:
            offset, sent_ms, has_settled = known
            assert not (sent.duplicate and has_settled), f"{dedupe_id} is remembered after its window"
            assert sent.duplicate or now_ms - sent_ms > _WINDOW_MS - _WRONG_MS, f"{dedupe_id} is forgotten at once"
            if sent.duplicate:
                assert sent.offset == offset, "a repeat is answered with the place of the first"
                return
        assert sent.offset == len(self.numbers), "offsets have no gaps"
        self.numbers.append(number)
        self.ids.pop(dedupe_id, None)
        self.ids[dedupe_id] = sent.offset, began_ms, False

    async def settled(self) -> None:
        self.ids = {each: (offset, sent_ms, True) for each, (offset, sent_ms, _) in self.ids.items()}

    async def finish(self) -> None:
        came = [int(each.text()) for each in await self.life.read("briefly", 0)]
        assert came == self.numbers, f"{came} are there, not {self.numbers}"
