"""The blocking transactional producer."""

from __future__ import annotations

from types import TracebackType
from typing import Any, Self

from lsmq import transactions as asynchronous
from lsmq.producer_groups import TransactionInfo
from lsmq.sync._client import Client
from lsmq.sync._crossing import blocking, blocking_through, in_a_thread, with_options_of
from lsmq.sync._lifecycle import BlockingCloseable
from lsmq.transactions import Check


class TransactionalProducer(BlockingCloseable):
    """Blocking :class:`lsmq.TransactionalProducer`: the same options and guarantees. Checks run in threads."""

    _async: asynchronous.TransactionalProducer

    @with_options_of(asynchronous.TransactionalProducer)
    def __init__(self, client: Client, group: str, *, check: Check | None = None, **options: Any) -> None:
        self._thread = client._thread

        async def make() -> asynchronous.TransactionalProducer:
            made = asynchronous.TransactionalProducer(client._async, group, check=in_a_thread(check), **options)
            made._told = True
            await made.__aenter__()
            return made

        self._async = self._thread.take(make, asynchronous.TransactionalProducer.close)

    close = blocking_through(asynchronous.TransactionalProducer.close)
    outcome = blocking(asynchronous.TransactionalProducer.outcome)

    @property
    def member_id(self) -> str:
        """See :attr:`lsmq.TransactionalProducer.member_id`."""
        return self._async.member_id

    def transaction(self, reference: str = "") -> Transaction:
        """A transaction, as a ``with`` block."""
        return Transaction(self, self._async.transaction(reference))

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

    send = blocking(asynchronous.Transaction.send)
    send_many = blocking(asynchronous.Transaction.send_many)
    commit = blocking(asynchronous.Transaction.commit)
    roll_back = blocking(asynchronous.Transaction.roll_back)

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
