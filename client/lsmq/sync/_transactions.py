"""The blocking transactional producer."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from types import TracebackType
from typing import Self

from lsmq import transactions as asynchronous
from lsmq.messages import Key
from lsmq.producer import Body
from lsmq.producer_groups import TransactionInfo
from lsmq.sync._client import Client
from lsmq.sync._lifecycle import Closing
from lsmq.transactions import (
    DEFAULT_CHECK_MS,
    DEFAULT_MAX_CHECKS,
    DEFAULT_SESSION_MS,
    DEFAULT_VISIBLE_MS,
    Outcome,
)

Check = Callable[[TransactionInfo], Outcome | str]


class TransactionalProducer(Closing):
    """Blocking :class:`lsmq.TransactionalProducer`: the same options and guarantees. Checks run in threads."""

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
        self._thread = client._thread

        async def make() -> asynchronous.TransactionalProducer:
            made = asynchronous.TransactionalProducer(
                client._async,
                group,
                check=None if check is None else lambda transaction: asyncio.to_thread(check, transaction),
                session_ms=session_ms,
                check_after_ms=check_after_ms,
                check_every_ms=check_every_ms,
                max_checks=max_checks,
                visible_ms=visible_ms,
                deadline_ms=deadline_ms,
                name=name,
            )
            await made.start()
            return made

        self._async = self._thread.call(make())

    def close(self) -> None:
        """See :meth:`lsmq.TransactionalProducer.close`."""
        self._thread.call(self._async.close())

    @property
    def member_id(self) -> str:
        """See :attr:`lsmq.TransactionalProducer.member_id`."""
        return self._async.member_id

    def transaction(self, reference: str = "") -> Transaction:
        """A transaction, as a ``with`` block."""
        return Transaction(self, self._async.transaction(reference))

    def outcome(self, transaction: str) -> TransactionInfo:
        """See :meth:`lsmq.TransactionalProducer.outcome`."""
        return self._thread.call(self._async.outcome(transaction))

    def take(self, sequence: str) -> Sequence:
        """See :meth:`lsmq.TransactionalProducer.take`."""
        return Sequence(self, self._thread.call(self._async.take(sequence)))


class Transaction:
    """Blocking :class:`lsmq.Transaction`."""

    def __init__(self, producer: TransactionalProducer, transaction: asynchronous.Transaction) -> None:
        self._thread = producer._thread
        self._async = transaction

    @property
    def id(self) -> str | None:
        """``None`` before the first message."""
        return self._async.id

    @property
    def reference(self) -> str:
        """What the application calls it."""
        return self._async.reference

    @property
    def position(self) -> str:
        """How far its sequence is with it; empty where it belongs to none."""
        return self._async.position

    @property
    def info(self) -> TransactionInfo | None:
        """See :attr:`lsmq.Transaction.info`."""
        return self._async.info

    def send(
        self,
        topic: str,
        body: Body,
        *,
        key: Key | None = None,
        tag: str | None = None,
        queue: int | None = None,
        properties: Mapping[str, str] | None = None,
        headers: Iterable[tuple[str, bytes]] = (),
        priority: int = 0,
        delete: bool = False,
    ) -> None:
        """See :meth:`lsmq.Transaction.send`."""
        self._thread.call(
            self._async.send(
                topic,
                body,
                key=key,
                tag=tag,
                queue=queue,
                properties=properties,
                headers=headers,
                priority=priority,
                delete=delete,
            )
        )

    def send_many(self, topic: str, messages: Iterable[Body | tuple[Key | None, Body]]) -> None:
        """See :meth:`lsmq.Transaction.send_many`."""
        self._thread.call(self._async.send_many(topic, messages))

    def commit(self) -> None:
        """See :meth:`lsmq.Transaction.commit`."""
        self._thread.call(self._async.commit())

    def roll_back(self) -> None:
        """See :meth:`lsmq.Transaction.roll_back`."""
        self._thread.call(self._async.roll_back())

    def leave_open(self) -> None:
        """See :meth:`lsmq.Transaction.leave_open`."""
        self._async.leave_open()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._thread.call(self._async.__aexit__(kind, error, trace))


class Sequence:
    """Blocking :class:`lsmq.transactions.Sequence`."""

    def __init__(self, producer: TransactionalProducer, sequence: asynchronous.Sequence) -> None:
        self._producer = producer
        self._async = sequence

    @property
    def name(self) -> str:
        """Of the sequence."""
        return self._async.name

    @property
    def position(self) -> str | None:
        """What the last committed transaction said."""
        return self._async.position

    def transaction(self, position: str, reference: str = "") -> Transaction:
        """See :meth:`lsmq.transactions.Sequence.transaction`."""
        return Transaction(self._producer, self._async.transaction(position, reference))
