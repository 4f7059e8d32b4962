"""A world of one coordinator and some shards, in which anything is lost, repeated, late, and everybody crashes.

What a log holds is kept entry by entry, as the store does: batches first, then the documents that belong to them. A
crash keeps any first part of what was in line. Messages between nodes stay in a bag and are handed over any number of
times, at any time; so do requests of clients.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from lsmq.errors import DeliveriesAhead, LsmqError, TransactionDecided, UnknownProducerMember, UnknownTransaction
from lsmq_node.storage.documents import LANE
from lsmq_node.transactions import TransactionDelivery, TransactionPart, TransactionRecord, TransactionState
from lsmq_node.transactions.book import TransactionBook
from lsmq_node.transactions.lanes import fresh_batches, lane_key, last_numbers, producer_of
from lsmq_node.transactions.records import BookChange, decode_part, encode_part, part_key

GROUP = "g"
COORDINATOR = 0
SHARDS = (1, 2, 3)

Documents = dict[str, bytes | None]


@dataclass
class Batch:
    producer: int
    epoch: int
    body: bytes


@dataclass
class Log:
    """A shard's log: what is committed, and what is in line."""

    documents: dict[str, bytes] = field(default_factory=dict)
    records: list[bytes] = field(default_factory=list)
    producers: dict[int, int] = field(default_factory=dict)
    line: list[Documents | Batch] = field(default_factory=list)

    def commit(self, count: int | None = None) -> None:
        """Commit the first entries in line; all, when left out."""
        entries, self.line = self.line[:count], self.line[len(self.line) if count is None else count :]
        for entry in entries:
            if isinstance(entry, Batch):
                if self.producers.get(entry.producer, -1) < entry.epoch:  # else it is a repeat
                    self.records.append(entry.body)
                    self.producers[entry.producer] = entry.epoch
                continue
            for key, value in entry.items():
                if value is None:
                    self.documents.pop(key, None)
                else:
                    self.documents[key] = value

    def with_prefix(self, prefix: str) -> list[tuple[str, bytes]]:
        return sorted((key, value) for key, value in self.documents.items() if key.startswith(prefix))

    def crash(self, rng: random.Random) -> None:
        self.commit(rng.randint(0, len(self.line)))
        self.line.clear()

    def copy(self) -> Log:
        return Log(dict(self.documents), list(self.records), dict(self.producers))


class Coordinator:
    """One leadership: it writes and sends as long as it is the world's current one; its messages outlive it."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.book = TransactionBook()
        self.book.load(sorted(world.log.documents.items()), world.now)

    def put(self, plan: BookChange) -> None:
        assert self.world.coordinator is self, "the store refuses others"
        if plan:
            lanes = {shard: lane.next for shard, lane in self.book.lanes.items()}
            self.world.log.line.append(plan.documents(lanes))
            self.book.apply(plan, self.world.now)

    def send(self, shard: int) -> None:
        """As the shell: wait for what is in line, then send what is next."""
        self.world.log.commit()
        lane = self.book.lanes.get(shard)
        if lane is None or not lane.waiting:
            return
        work = self.book.to_deliver(shard, 2, 10_000)
        batches = []
        for first, transaction in work:
            own = [
                item
                for number in range(transaction.parts)
                for item in decode_part(self.world.log.documents[part_key(transaction.key, number)])
                if item[0] == shard
            ]
            batches += [(first + at, topic_id, topic, body) for at, (_, topic_id, topic, body) in enumerate(own)]
        delivery = TransactionDelivery(COORDINATOR, lane.limit, batches)
        lane.limit = max(lane.limit, batches[-1][0])  # Whatever becomes of it.
        keys = [transaction.key for _, transaction in work]
        self.world.bag.append(lambda: self._arrive(shard, delivery, keys))

    def _arrive(self, shard: int, delivery: TransactionDelivery, keys: list[tuple[str, str]]) -> None:
        target = self.world.targets[shard]
        try:
            target.receive(delivery)
        except DeliveriesAhead as error:
            if self.world.may_lose and self.world.coordinator is self:
                for plan in self.book.renumber(shard, int(error.details["last"])):
                    self.put(plan)
            return
        if self.world.rng.random() < 0.7 and self.world.coordinator is self:  # else the answer is lost
            self.put(self.book.delivered(shard, keys))


class Target:
    """The leader of a shard, which gets deliveries."""

    def __init__(self, number: int, log: Log) -> None:
        self.number = number
        self.log = log
        self.last, behind = last_numbers(log.with_prefix(LANE), 1, log.producers.get)
        if behind:
            log.line.append(behind)
            log.commit()

    def receive(self, delivery: TransactionDelivery) -> None:
        fresh = fresh_batches(self.number, self.last.get(COORDINATOR, 0), delivery)
        if fresh:
            for number, _, _, body in fresh:
                self.log.line.append(Batch(*producer_of(COORDINATOR, number), body))
            self.log.line.append({lane_key(COORDINATOR): b"%d" % fresh[-1][0]})
            self.last[COORDINATOR] = fresh[-1][0]
        self.log.commit()


class World:
    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.now = 0.0
        self.log = Log()
        self.targets = {shard: Target(shard, Log()) for shard in SHARDS}
        self.bag: list[Callable[[], None]] = []
        self.coordinator = Coordinator(self)
        self.may_lose = False
        self.numbers: Counter[str] = Counter()
        self.begun: dict[str, list[tuple[int, bytes]]] = {}  # by id: shard and body of each batch
        self.answered: dict[str, TransactionState] = {}  # what clients were told
        self.forgotten: set[str] = set()

    # What may happen

    def step(self) -> None:
        action = self.rng.choices(
            (
                self.join,
                self.begin,
                self.add,
                self.decide,
                self.send,
                self.from_bag,
                self.commit,
                self.fail_over,
                self.crash_target,
                self.pass_time,
            ),
            (1, 4, 2, 4, 6, 8, 2, 0.6, 0.8, 1),
        )[0]
        action()
        self.check_now()

    def join(self) -> None:
        key = (GROUP, f"m{self.rng.randrange(3)}")
        self.ask(lambda at: at.put(at.book.join(key, 5_000, "", checks=True, now=self.now)))

    def ask(self, work: Callable[[Coordinator], None]) -> None:
        """A request that may come late, and more than once."""

        def arrive() -> None:
            try:
                work(self.coordinator)
            except LsmqError as error:
                assert isinstance(error, UnknownProducerMember | UnknownTransaction | TransactionDecided), error

        if self.rng.random() < 0.3:
            self.bag.append(arrive)
        if self.rng.random() < 0.8:
            arrive()

    def part(self, id: str, number: int) -> TransactionPart:
        items = []
        batches: Counter[int] = Counter()
        for shard in self.rng.sample(SHARDS, self.rng.randint(1, 3)):
            body = f"{id} {number} {shard}".encode()
            items.append((shard, 1, "t", body))
            batches[shard] += 1
        return TransactionPart(encode_part(items), {"t": len(items)}, batches)

    def begin(self) -> None:
        member = f"m{self.rng.randrange(3)}"
        self.numbers[member] += 1
        number = self.numbers[member]
        id = f"{member}-{number}"
        part = self.part(id, 0)
        transaction = TransactionRecord(GROUP, id, member, "", "", "", 0, 1_000, 1_000, 2)
        self.begun[id] = []

        def work(at: Coordinator) -> None:
            at.put(at.book.begin(transaction, number, part))

        self.ask(work)

    def some(self) -> str | None:
        known = [id for id in self.begun if (GROUP, id) in self.coordinator.book.transactions]
        return self.rng.choice(known) if known else None

    def add(self) -> None:
        id = self.some()
        if id is not None:
            number = self.coordinator.book.transactions[GROUP, id].parts
            part = self.part(id, number)
            self.ask(lambda at: at.put(at.book.add((GROUP, id), number, part)))

    def decide(self) -> None:
        id = self.some()
        if id is None:
            return
        state = self.rng.choice((TransactionState.COMMITTED, TransactionState.COMMITTED, TransactionState.ROLLED_BACK))

        def work(at: Coordinator) -> None:
            at.put(at.book.decide((GROUP, id), state, "somebody", 0))
            if self.rng.random() < 0.8:
                self.log.commit()
                assert self.answered.setdefault(id, state) is state, "it was decided the other way before"

        self.ask(work)

    def send(self) -> None:
        self.coordinator.send(self.rng.choice(SHARDS))

    def from_bag(self) -> None:
        if self.bag:
            at = self.rng.randrange(len(self.bag))
            message = self.bag[at]
            if self.rng.random() < 0.7:
                del self.bag[at]
            message()

    def commit(self) -> None:
        self.log.commit()

    def fail_over(self) -> None:
        """Another leads, with a first part of what was in line. What the old one has sent may arrive much later."""
        self.log.crash(self.rng)
        self.coordinator = Coordinator(self)

    def crash_target(self) -> None:
        shard = self.rng.choice(SHARDS)
        self.targets[shard].log.crash(self.rng)
        self.targets[shard] = Target(shard, self.targets[shard].log)

    def pass_time(self) -> None:
        self.now += self.rng.uniform(0, 2)
        book = self.coordinator.book
        self.coordinator.put(book.expire(self.now))
        self.coordinator.put(book.checks(self.now, 0, 0))

    # What must be

    def visible(self, shard: int) -> list[bytes]:
        return self.targets[shard].log.records

    def check_now(self) -> None:
        """Nobody sees what is not durably committed."""
        for shard in SHARDS:
            for body in self.visible(shard):
                id = body.decode().split(" ")[0]
                stored = self.log.documents[f"transaction/{GROUP}/{id}"]
                assert TransactionRecord.decode(stored, id).state == TransactionState.COMMITTED, body

    def heal(self) -> None:
        """No more faults: everything that is decided is delivered."""
        self.bag.clear()
        self.log.commit()
        for _ in range(1_000):
            waiting = [shard for shard, lane in self.coordinator.book.lanes.items() if lane.waiting]
            if not waiting:
                break
            for shard in waiting:
                self.coordinator.send(shard)
                while self.bag:
                    self.bag.pop()()
        self.log.commit()

    def check_end(self) -> None:
        """What is committed is everywhere once; nothing else is anywhere."""
        self.fail_over()
        self.heal()
        book = TransactionBook()
        book.load(sorted(self.log.documents.items()), self.now)
        assert not any(key.startswith("transaction-part/") for key in self.log.documents) or any(
            each.is_open for each in book.transactions.values()
        )
        for id, state in self.answered.items():
            assert book.transactions[GROUP, id].state == state
        for shard in SHARDS:
            bodies = self.visible(shard)
            assert len(bodies) == len(set(bodies)), "stored twice"
            found = Counter(body.decode().split(" ")[0] for body in bodies)
            wanted = {
                id: transaction.batches[shard]
                for (_, id), transaction in book.transactions.items()
                if transaction.state == TransactionState.COMMITTED and shard in transaction.batches
            }
            assert found == wanted
            for id in found:
                own = [body for body in bodies if body.decode().split(" ")[0] == id]
                at = bodies.index(own[0])
                assert bodies[at : at + len(own)] == sorted(own), "a transaction's messages lie together, in order"
