"""Transactions: messages that appear all together, or not at all, tied to something the application does itself.

::

    async with TransactionalProducer(client, "billing", check=was_it_paid) as producer:
        async with producer.transaction(reference="order 17") as transaction:
            await transaction.send("invoices", invoice)
            await transaction.send("mails", mail)
            database.pay("order 17")

The messages are stored, and nobody sees them, before the local step begins. Leaving the block commits; an exception
rolls back. When the producer dies in between, the broker asks a member of the group: ``check`` says whether the local
step was done. ``docs/transactions.md`` says what is promised.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from typing import Any

from lsmq._heartbeats import HeartbeatThread
from lsmq._lifecycle import Starting
from lsmq._rate_limited import RateLimitedWarnings
from lsmq._retries import Backoff
from lsmq._transaction import Outcome, Sequence, Transaction
from lsmq.background_tasks import BackgroundTasks, as_lsmq_error
from lsmq.client import Client
from lsmq.errors import (
    ClientClosed,
    InvalidRequest,
    LsmqError,
    TransactionDecided,
    UnknownProducerMember,
    UnknownTransaction,
)
from lsmq.group_values import new_member_id
from lsmq.producer_groups import ProducerGroup, SequencePosition, TransactionInfo

__all__ = ["Check", "Outcome", "Sequence", "Transaction", "TransactionalProducer"]

DEFAULT_SESSION_MS = 10_000
DEFAULT_CHECK_MS = 30_000
DEFAULT_MAX_CHECKS = 20
DEFAULT_VISIBLE_MS = 2_000

_LEAVE_DEADLINE_MS = 5_000
_CLEAN_UP_DEADLINE_MS = 1_000
_MAX_BEGINS = 100
_log = logging.getLogger("lsmq")


#: Says whether the local step of a transaction was done; a plain or a coroutine function.
Check = Callable[[TransactionInfo], Outcome | str | Awaitable[Outcome | str]]


class TransactionalProducer(Starting):
    """A member of a producer group, which begins transactions and is asked about those of members that died.

    ``check`` is called with a :class:`TransactionInfo` and says ``"commit"``, ``"rollback"`` or ``"unknown"``; it looks
    up whether the local step was done: best by the transaction's id, which the local step stores with what it does (a
    reference that is used again may mean another transaction). It may be called more than once, and in any member.
    Without it this member is asked about nothing but its own transactions.

    A transaction that is not decided ``check_after_ms`` after its last messages is asked about, then every
    ``check_every_ms``, and rolled back after ``max_checks`` times in vain. While a member lives, only that is asked
    about its transactions, and one that is still in its block is left alone.

    ``visible_ms``: a commit waits so long, at most, until consumers see the messages; what is decided stays decided.

    Use it as ``async with TransactionalProducer(client, group)``. Belongs to one event loop; any number of its tasks
    may have transactions. Heartbeats run in a thread of their own: a local step may block the event loop.
    """

    def __init__(
        self,
        client: Client,
        group: str,
        *,
        check: Check | None = None,
        session_ms: int = DEFAULT_SESSION_MS,
        check_after_ms: int = DEFAULT_CHECK_MS,
        check_every_ms: int = DEFAULT_CHECK_MS,
        max_checks: int = DEFAULT_MAX_CHECKS,
        visible_ms: int = DEFAULT_VISIBLE_MS,
        deadline_ms: int | None = None,
        name: str | None = None,
    ) -> None:
        if min(session_ms, check_after_ms, check_every_ms, max_checks) <= 0:
            raise InvalidRequest("session_ms, check_after_ms, check_every_ms and max_checks must be above 0")
        self._client = client
        self._check = check
        self._session_ms = session_ms
        self._times: dict[str, int] = {
            "check_after_ms": check_after_ms,
            "check_every_ms": check_every_ms,
            "max_checks": max_checks,
        }
        self._visible_ms = visible_ms
        self._deadline_ms = deadline_ms
        self._name = name
        self._group = ProducerGroup(client, group)
        self._member = ""
        self._number = 0
        #: By transaction that is not finished: what was decided of it here; None while its local step may go on.
        self._intents: dict[str, Outcome | None] = {}
        self._checking: dict[str, asyncio.Task[None]] = {}
        self._joining = asyncio.Lock()
        self._begins = asyncio.Semaphore(_MAX_BEGINS)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: HeartbeatThread | None = None
        self._heart = BackgroundTasks(self._heart_broke)  # in the thread
        self._checks = BackgroundTasks(self._check_broke)
        self._unheard, self._placeless = RateLimitedWarnings(), RateLimitedWarnings()  # in the thread
        self._unanswered, self._failed, self._late = RateLimitedWarnings(), RateLimitedWarnings(), RateLimitedWarnings()
        self._broken: LsmqError | None = None
        self._closed = False
        self._has_left = False  # with the client
        self._closing = BackgroundTasks()
        self._ending: asyncio.Task[None] | None = None  # who closes it a second time waits for the first

    @property
    def member_id(self) -> str:
        """How ``lsmq transaction list`` calls it. Another one after its session has ended."""
        return self._member

    # Life

    async def start(self) -> None:
        """Join the group. Entering ``async with`` or the first transaction does it."""
        if self._closed:
            raise ClientClosed("this producer is closed; make a new one")
        if self._broken is not None:
            raise self._broken
        async with self._joining:
            if self._thread is not None:
                return
            self._loop = asyncio.get_running_loop()
            await self._join()
            if self._closed:  # Meanwhile, by whoever found no member.
                await self._leave(self._group)
                raise ClientClosed("this producer is closed; make a new one")
            thread = self._thread = HeartbeatThread.of(self._client)
            try:
                await thread.call(self._beat(thread))
            except BaseException:
                await self._end_thread()
                raise

    def _left_open(self) -> str:
        beats = self._thread is not None and not self._closed and self._client._transport.is_open
        return f"a producer in group {self._group.name!r}" if beats else ""

    async def _join(self) -> None:
        """Become a member, under a new id."""
        member = new_member_id()
        await self._group.heartbeat(
            member,
            join=True,
            checks=self._check is not None,
            session_ms=self._session_ms,
            client=self._name,
            deadline_ms=self._deadline_ms,
        )
        self._member, self._number = member, 0

    async def close(self) -> None:
        """Leave the group. Others are asked about what is not decided. It goes on to its end where it is cancelled."""
        self._closed = True
        if self._ending is None:
            self._ending = self._closing.begin(self._end(), "lsmq producer ends")
        await asyncio.shield(self._ending)

    async def _end(self) -> None:
        await self._end_thread()
        await self._checks.end()
        if self._member and not self._has_left:
            await self._leave(self._group)

    async def _end_thread(self) -> None:
        thread, self._thread = self._thread, None
        if thread is not None:
            with suppress(ClientClosed):  # It has ended with the client.
                await thread.call(self._stop_beating(thread))
            await thread.release(self._client)

    async def _leave(self, group: ProducerGroup) -> None:
        try:
            await group.leave(self._member, deadline_ms=_LEAVE_DEADLINE_MS)
        except LsmqError as error:
            _log.warning("producer could not leave, its session will end: group=%s error=%s", group.name, error)

    # Heartbeats, in the thread

    async def _beat(self, thread: HeartbeatThread) -> None:
        group = ProducerGroup(thread.client, self._group.name)
        thread.begins(self, partial(self._end_with_client, thread, group))
        self._heart.begin(self._beat_for_ever(thread, group), "lsmq producer heartbeats")

    async def _stop_beating(self, thread: HeartbeatThread) -> None:
        thread.ends(self)
        await self._heart.end()

    async def _end_with_client(self, thread: HeartbeatThread, group: ProducerGroup) -> None:
        self._broken = ClientClosed("the client was closed before its producer")
        await self._stop_beating(thread)
        await self._leave(group)
        self._has_left = True

    def _heart_broke(self, error: Exception) -> None:
        """Its session will end: every transaction that is begun from now on raises it."""
        self._broken = as_lsmq_error(error, f"heartbeating in producer group {self._group.name!r}")

    async def _beat_for_ever(self, thread: HeartbeatThread, group: ProducerGroup) -> None:
        backoff = Backoff()
        wait_ms = self._session_ms // 3
        loop = asyncio.get_running_loop()
        assert self._loop is not None
        while not self._loop.is_closed():  # Then nobody would answer what it is asked.
            member, began = self._member, loop.time()
            try:
                asked = await group.heartbeat(member, wait_ms=wait_ms)
            except UnknownProducerMember:
                if member == self._member:
                    self._placeless.warn("producer lost its place: group=%s member=%s", group.name, member)
                    self._tell(partial(self._lost, member))
                await backoff.pause()
                continue
            except Exception as error:
                defect = None if isinstance(error, LsmqError) else error
                self._unheard.warn("no heartbeat: group=%s error=%s", group.name, error, error=defect)
                await backoff.pause()
                continue
            backoff.reset()
            if asked:
                self._tell(partial(self._asked, asked))
            elif loop.time() - began < wait_ms / 4000:
                await asyncio.sleep(wait_ms / 2000)  # The node does not hold heartbeats now.
        await thread.forsaken(self)

    def _tell(self, news: Callable[[], None]) -> None:
        assert self._loop is not None
        with suppress(RuntimeError):  # The loop is closed.
            self._loop.call_soon_threadsafe(news)

    # Being asked

    def _lost(self, member: str) -> None:
        if member == self._member and not self._closed and "join" not in self._checking:
            self._start("join", self._join_again(member))

    def _asked(self, transactions: list[TransactionInfo]) -> None:
        for transaction in transactions:
            id = transaction.id
            if self._closed or id in self._checking or self._intents.get(id, Outcome.UNKNOWN) is None:
                continue
            self._start(id, self._answer(transaction))

    def _start(self, name: str, work: Any) -> None:
        task = self._checking[name] = self._checks.begin(work, f"lsmq check {name}")
        task.add_done_callback(lambda _: self._checking.pop(name, None))

    def _check_broke(self, error: Exception) -> None:
        """The broker asks again, as it does after each that is not answered; and says again that the place is lost."""
        self._unanswered.warn("a check was not answered: group=%s error=%r", self._group.name, error)

    async def _answer(self, transaction: TransactionInfo) -> None:
        """Ask the application, unless it has said it before, and tell the broker."""
        outcome = self._intents.get(transaction.id)
        if outcome is None:
            if self._check is None:
                return
            try:
                found = self._check(transaction)
                outcome = Outcome(await found if inspect.isawaitable(found) else found)
            except Exception as error:
                about = (self._group.name, transaction.id)
                self._failed.warn("the check failed: group=%s transaction=%s", *about, error=error)
                return
        try:
            if outcome is Outcome.COMMIT:
                await self._group.commit(transaction.id, member=self._member)
            elif outcome is Outcome.ROLLBACK:
                await self._group.roll_back(transaction.id, member=self._member)
            self._intents.pop(transaction.id, None)
        except (TransactionDecided, UnknownTransaction) as error:
            self._intents.pop(transaction.id, None)
            self._late.warn("a check came too late: %s", error)
        except LsmqError as error:
            self._unanswered.warn("a check could not be answered, it will come again: %s", error)

    # Transactions

    def transaction(self, reference: str = "") -> Transaction:
        """A transaction, as an ``async with`` block; ``reference`` (256 characters) is what checks are told."""
        return Transaction(self, reference)

    async def outcome(self, transaction: str) -> TransactionInfo:
        """What became of a transaction. Raises ``UnknownTransaction`` for one that ended long ago."""
        return await self._group.transaction(transaction)

    async def take(self, sequence: str) -> Sequence:
        """Go on with a sequence of transactions, from wherever whoever had it before has come.

        What that one has open is rolled back, and it can begin and commit no more of it.
        """
        await self.start()
        member = self._member
        try:
            taken = await self._group.take(sequence, member, deadline_ms=self._deadline_ms)
        except UnknownProducerMember:
            await self._join_again(member)
            taken = await self._group.take(sequence, self._member, deadline_ms=self._deadline_ms)
        return Sequence(self, taken)

    async def _begin(
        self, reference: str, messages: list[dict[str, Any]], sequence: SequencePosition | None, position: str
    ) -> TransactionInfo:
        await self.start()
        async with self._begins:
            return await self._begin_one(reference, messages, sequence, position)

    async def _begin_one(
        self, reference: str, messages: list[dict[str, Any]], sequence: SequencePosition | None, position: str
    ) -> TransactionInfo:
        for _ in range(2):
            self._number += 1
            member, id = self._member, f"{self._member}-{self._number}"
            self._intents[id] = None
            try:
                return await self._group.begin(
                    member,
                    self._number,
                    messages,
                    reference=reference,
                    sequence=sequence,
                    position=position,
                    deadline_ms=self._deadline_ms,
                    **self._times,
                )
            except UnknownProducerMember:
                # An earlier attempt may have begun it, under the id that is gone; nobody must be asked about that one.
                self._intents.pop(id, None)
                with suppress(UnknownTransaction):
                    await self._group.roll_back(id, deadline_ms=self._deadline_ms)
                await self._join_again(member)
            except LsmqError as error:
                self._intents.pop(id, None)
                if error.retriable:  # It may have begun all the same.
                    try:
                        await self._group.roll_back(id, deadline_ms=_CLEAN_UP_DEADLINE_MS)
                    except UnknownTransaction:
                        pass
                    except LsmqError:  # It will be asked about.
                        error.details["maybe_stored"] = True
                raise
            except BaseException:
                self._intents.pop(id, None)
                raise
        raise UnknownProducerMember(
            f"producer group {self._group.name!r} forgets its members as soon as they join; raise session_ms",
            group=self._group.name,
        )

    async def _join_again(self, member: str) -> None:
        async with self._joining:
            if self._member == member:
                await self._join()

    async def _add(self, id: str, part: int, messages: list[dict[str, Any]]) -> None:
        await self._group.add(id, part, messages, deadline_ms=self._deadline_ms)

    async def _decide(self, id: str, outcome: Outcome) -> TransactionInfo:
        """Until it is known to be decided, checks are answered the same."""
        self._intents[id] = outcome
        try:
            if outcome is Outcome.COMMIT:
                found = await self._group.commit(
                    id, member=self._member, wait_ms=self._visible_ms, deadline_ms=self._deadline_ms
                )
            else:
                found = await self._group.roll_back(id, member=self._member, deadline_ms=self._deadline_ms)
        except (TransactionDecided, UnknownTransaction):
            self._intents.pop(id, None)
            raise
        self._intents.pop(id, None)
        return found

    def _leave_open(self, id: str) -> None:
        """Nobody here knows how far its local step came: the application is asked."""
        if self._intents.get(id, Outcome.UNKNOWN) is None:
            del self._intents[id]
