"""The producer groups and transactions of one shard while this node leads it: the shell of a :class:`.TransactionBook`.

Nothing is answered, and nothing is delivered, before it is durable.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any

import structlog

from lsmq.errors import DeliveriesAhead, LsmqError, Unavailable
from lsmq_node.broker import NOBODY, Limited, Made, Maker, ShardPort, asked_from
from lsmq_node.machines import HOUR_S, IdleNames, ShardMachine, Step
from lsmq_node.storage.documents import LANE, LANES, SEQUENCES, TRANSACTIONS

from .book import MAX_OPEN_MS, MAX_UNFINISHED, TransactionBook
from .delivery import TransactionDelivery, may_be_stored
from .lanes import last_numbers
from .records import (
    MEMBERS,
    BookChange,
    MemberSequence,
    RecordKey,
    TransactionPart,
    TransactionRecord,
    TransactionState,
    decode_part,
    part_key,
    split_key,
)
from .shares import SHARED, SHARED_GROUPS, AddressShares, ProducerGroupShares

if TYPE_CHECKING:
    from .service import TransactionService

_log = structlog.get_logger("lsmq.transactions")

_LOAD_AT_ONCE = 500
_MOST_AN_HOUR = 1_000  # sequences that are forgotten
_SHOWN = 10  # names in a line of the log
_DELIVERED_BATCHES = 200
_DELIVERED_BYTES = 1 << 20
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.05, 1.0


@dataclass(slots=True)
class TransactionCounts:
    """What happened to transactions since the node began."""

    begun: int = 0
    committed: int = 0
    rolled_back: int = 0
    given_up: int = 0  # of those rolled back: by the broker, since nobody decided
    checks: int = 0
    expired: int = 0
    delivered_batches: int = 0
    delivery_failures: int = 0
    dropped_batches: int = 0


class ShardTransactions(ShardMachine):
    """Transactions that a shard coordinates, and what it has had from other coordinators, in one round of its store.

    Loop thread only.
    """

    subject = "transactions"

    def __init__(self, service: TransactionService, port: ShardPort) -> None:
        super().__init__(service, port)
        config = service.broker.config
        held_bytes = self.store.options.max_documents_bytes // 2
        self.book = TransactionBook(config.max_request_bytes // 2, held_bytes, config.max_groups)
        allowances = service.broker.allowances
        made = Made(allowances, Limited.TRANSACTIONS)
        self._group_shares = ProducerGroupShares(allowances.addresses.share(config.max_groups, SHARED_GROUPS))
        share = allowances.addresses.share(MAX_UNFINISHED, SHARED)
        self.shares = AddressShares(share, held_bytes * config.share_percent // 100, made)
        self._idle = IdleNames("sequence", config.sequence_retention_hours)
        self._hour_began = 0.0
        self.last: dict[int, int] = {}  # by coordinator, the number of the last batch put in line here
        self.counts = service.counts
        self._coordinators = service.broker.topology.home_shards
        self._send = service.send
        self._names_to_come = service.names_to_come
        self._sending: dict[int, asyncio.Task[Any]] = {}

    async def load(self, left: Any) -> None:
        await self.barrier()
        store = self.store
        documents = [item for prefix in (MEMBERS, TRANSACTIONS, SEQUENCES) for item in store.documents(prefix)]
        lanes = store.document(LANES)
        if lanes is not None:
            documents.insert(0, (LANES, lanes))
        for at in range(0, len(documents), _LOAD_AT_ONCE):
            self.book.load(documents[at : at + _LOAD_AT_ONCE], self.now)
            await asyncio.sleep(0)
        self.book.loaded(self.now, self.store.time.present_ms)
        self.last, behind = last_numbers(store.documents(LANE), self._coordinators, store.producer_epoch)
        if behind:  # The rest of a unit that was cut off; the shard forgets producers in time.
            await self.durable(self.put(Step(behind)))
        self.load_idle(self._idle)
        number, count = self.port.number, len(self.book.transactions)
        _log.info("transactions_loaded", shard=number, transactions=count, round=self.round)
        self.deliver()

    # Storing

    def _step(self, plan: BookChange, stored: Callable[[], object] | None = None) -> Step:
        """A plan as a step, which must be put before the book makes another plan."""

        def appended() -> None:
            self.book.apply(plan, self.now)
            self.shares.follow(plan)
            for group in {group for group, _ in plan.members}:
                self._forget_empty(group)

        lanes = {shard: lane.next for shard, lane in self.book.lanes.items()}
        documents = plan.documents(lanes)
        for key, sequence in plan.sequences.items():
            name = "/".join(key)
            documents.update(self._idle.forget(name) if sequence is None else self._idle.touch(name))
        return Step(documents, appended=appended, stored=stored or (lambda: None))

    # Members

    def _forget_empty(self, group: str) -> None:
        if not self.book.has_members(group):
            self._group_shares.end(group)

    async def heartbeat(
        self, key: RecordKey, session_ms: int, client: str, *, checks: bool, join: bool, wait_s: float
    ) -> list[TransactionRecord]:
        """Hear a member; the transactions it is asked about. Held up to ``wait_s`` while there are none.

        Raises ``UnknownProducerMember`` unless it joins, ``TooManyMembers``.
        """
        self.check()
        if join:
            plan = self.book.join(key, session_ms, client, checks=checks, now=self.now)
            if plan and not self.book.has_members(key[0]):
                self._group_shares.begin(key[0], asked_from.get())
            try:
                await self.done(self._step(plan))
            finally:
                self._forget_empty(key[0])
        self.book.hear(key, self.now)
        if not self.book.asked.get(key):
            await self._hold(key, wait_s)
            self.check()
            self.book.hear(key, self.now)
        return self.book.take_asked(key)

    async def leave(self, key: RecordKey) -> None:
        """Durable on return."""
        self.check()
        await self.done(self._step(self.book.leave(key)))
        self.wake(*key)

    # Transactions

    async def begin(
        self, transaction: TransactionRecord, number: int, part: TransactionPart, sequence_epoch: int, client: str
    ) -> TransactionRecord:
        """See :meth:`TransactionBook.begin` and :class:`AddressShares`; it is ``client``'s. Durable on return.

        Raises ``TooManyQueues`` as well, as :meth:`add` does.
        """
        self.check()
        if part.names and transaction.key not in self.book.transactions:
            await self._names_to_come.check(part.names)
            self.check()
        plan = self.book.begin(transaction, number, part, sequence_epoch)
        if plan:
            self.shares.check(transaction.key, client, len(part.body))
            self.shares.begun(transaction.key, client)
        self.counts.begun += bool(plan)
        try:
            await self.done(self._step(plan))
        finally:
            if transaction.key not in self.book.transactions:  # It was refused.
                self.shares.follow(BookChange(transactions={transaction.key: None}))
        return self.book.transaction(transaction.key)

    async def add(self, key: RecordKey, number: int, part: TransactionPart, client: str) -> TransactionRecord:
        """See :meth:`TransactionBook.add` and :class:`AddressShares`. Durable on return."""
        self.check()
        if part.names and self.book.add(key, number, part):
            await self._names_to_come.check(part.names)
            self.check()
        plan = self.book.add(key, number, part)
        if plan:
            self.shares.check(key, client, len(part.body))
        await self.done(self._step(plan))
        return self.book.transaction(key)

    async def decide(self, key: RecordKey, state: TransactionState, by: str, wait_s: float) -> TransactionRecord:
        """See :meth:`TransactionBook.decide`. Durable on return, and delivered if not later than ``wait_s``."""
        self.check()
        plan = self.book.decide(key, state, by, self.store.time.present_ms)
        await self.done(self._step(plan, partial(self._decided, plan.transactions)))
        self.deliver()
        if wait_s > 0 and not self.book.transaction(key).is_finished:
            await self._hold(key, wait_s)
            self.check()
        return self.book.transaction(key)

    def _decided(self, keys: Iterable[RecordKey], *, given_up: bool = False) -> None:
        for key in keys:
            transaction = self.book.transaction(key)
            committed = transaction.state == TransactionState.COMMITTED
            self.counts.committed += committed
            self.counts.rolled_back += not committed
            if given_up:
                self.counts.given_up += 1
                _log.warning(
                    "transaction_given_up",
                    group=key[0],
                    transaction=key[1],
                    reference=transaction.reference,
                    checks=transaction.checks,
                )

    async def take(self, group: str, name: str, member: str, epoch: int | None) -> MemberSequence:
        """See :meth:`TransactionBook.take`. Durable on return."""
        self.check()
        plan = self.book.take(group, name, member, self.store.time.present_ms, epoch)
        taken = plan.sequences[group, name]
        await self.done(self._step(plan, partial(self._decided, plan.transactions)))
        assert taken is not None
        return taken

    def transaction(self, key: RecordKey) -> TransactionRecord:
        """Raises ``UnknownTransaction``."""
        self.check()
        return self.book.transaction(key)

    # Time

    def due(self) -> Iterator[Step]:
        """Sessions end, transactions are asked about, given up and forgotten."""
        now, now_ms = self.now, self.store.time.present_ms
        if gone := self.book.expire(now):
            yield self._step(gone, partial(self._expired, list(gone.members)))
        if forgotten := self.book.forget(now):
            yield self._step(forgotten)
        if checks := self.book.checks(now, now_ms, self.store.time.expired_before(MAX_OPEN_MS)):
            yield self._step(checks, partial(self._checked, checks))
        for key in list(self.book.asked):
            self.wake(*key)
        if now - self._hour_began >= HOUR_S:
            self._hour_began = now
            yield from self._hour()
        self.deliver()

    def _hour(self) -> Iterator[Step]:
        """An hour has passed: sequences that nobody has used for long are forgotten."""
        yield Step(self._idle.hour())
        touched: dict[str, bytes | None] = {}
        names = ("/".join(key) for key in self.book.sequences)
        for name in islice((name for name in names if not self._idle.knows(name)), _MOST_AN_HOUR):
            touched |= self._idle.touch(name)  # It was used with an earlier release.
        yield Step(touched)
        for name in self._idle.idle()[:_MOST_AN_HOUR]:
            key = split_key(name, "")
            if key not in self.book.sequences:
                yield Step(self._idle.forget(name))
            elif self.book.is_held(key):
                yield Step(self._idle.touch(name))
            else:
                _log.info("sequence_forgotten", group=key[0], sequence=key[1], shard=self.port.number)
                yield self._step(BookChange(sequences={key: None}))

    def _expired(self, members: list[RecordKey]) -> None:
        if not members:
            return  # what they had open ended alone
        self.counts.expired += len(members)
        shown = [f"{group}/{id}" for group, id in members[:_SHOWN]]
        _log.info("producers_expired", shard=self.port.number, count=len(members), members=shown)

    def _checked(self, plan: BookChange) -> None:
        asked = [key for key, each in plan.transactions.items() if each is not None and each.is_open]
        self.counts.checks += len(asked)
        self._decided(plan.transactions.keys() - asked, given_up=True)

    # Deliveries

    def deliver(self) -> None:
        """Send what is decided, one request a shard at a time."""
        if self.service.held.closed:
            return
        for shard, lane in self.book.lanes.items():
            if lane.waiting and shard not in self._sending:
                self._sending[shard] = self._start(self._send_all(shard))

    async def _send_all(self, shard: int) -> None:
        pause_s = _FIRST_PAUSE_S
        try:
            while self.is_current and not self.service.held.closed and self.book.lanes[shard].waiting:
                try:
                    await self._send_some(shard)
                    pause_s = _FIRST_PAUSE_S
                except DeliveriesAhead as error:
                    self.check()
                    _log.error("deliveries_ahead", coordinator=self.port.number, details=error.details)
                    steps = map(self._step, self.book.renumber(shard, int(error.details["last"])))
                    *_, future = map(self.put, steps)  # in line together: nothing is decided in between
                    await self.durable(future)
                except LsmqError as error:
                    self.counts.delivery_failures += 1
                    _log.info("not_delivered", shard=shard, code=error.code, message=error.message)
                    await asyncio.sleep(pause_s)
                    pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
        finally:
            del self._sending[shard]

    async def _send_some(self, shard: int) -> None:
        lane = self.book.lanes[shard]
        work = self.book.to_deliver(shard, _DELIVERED_BATCHES, min(_DELIVERED_BYTES, self.book.max_bytes))
        await self.barrier()  # What is decided in memory only must not be seen.
        self.check()
        batches: list[tuple[int, int, str, bytes]] = []
        makers: dict[int, Maker] = {}
        for first, transaction in work:
            found = self._batches(shard, first, transaction)
            batches += found
            if (maker := self.shares.maker(transaction.key)) != NOBODY:
                makers |= dict.fromkeys((number for number, *_ in found), maker)
        try:
            dropped = await self._send(shard, TransactionDelivery(self.port.number, lane.limit, batches, makers))
        except BaseException as error:
            if not isinstance(error, LsmqError) or may_be_stored(error):
                lane.limit = max(lane.limit, batches[-1][0])
            raise
        lane.limit = max(lane.limit, batches[-1][0])
        self.check()
        if dropped:
            self.counts.dropped_batches += dropped
            _log.warning("delivered_to_no_topic", shard=shard, batches=dropped)
        self.counts.delivered_batches += len(batches) - dropped
        keys = [transaction.key for _, transaction in work]
        step = self._step(self.book.delivered(shard, keys))
        if step:
            self.put(step)
        for key in keys:
            if self.book.transactions[key].is_finished:
                self.wake(*key)

    def _batches(self, shard: int, first: int, transaction: TransactionRecord) -> list[tuple[int, int, str, bytes]]:
        found: list[tuple[int, int, str, bytes]] = []
        for number in range(transaction.parts):
            key = part_key(transaction.key, number)
            body = self.store.document(key)
            if body is None:
                raise Unavailable(f"the document {key!r} is missing", shard=self.port.number)
            for target, topic_id, topic, batch in decode_part(body):
                if target == shard:
                    found.append((first + len(found), topic_id, topic, batch))
        return found

    # Waiting

    async def _hold(self, key: RecordKey, wait_s: float) -> None:
        """Until ``key`` is woken, or the time is over: for a member's checks, or a transaction's delivery."""
        if wait_s > 0 and not self.service.held.closed:
            await self.wait(key, deadline=self._loop.time() + wait_s)
