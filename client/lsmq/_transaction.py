"""One transaction, and sequences of them, as a transactional producer makes them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from enum import StrEnum
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, Unpack

from lsmq import runtime
from lsmq._message_parts import Body
from lsmq.errors import InvalidRequest, LsmqError
from lsmq.message_times import due_value, expiry_value
from lsmq.messages import (
    Key,
    MessageOptions,
    body_bytes,
    check_delete,
    check_headers,
    check_key,
    check_many,
    check_not_later,
    check_properties,
    check_tag,
    check_type,
    dedupe_hash,
    key_and_body,
    priority_value,
    whole_queue,
)
from lsmq.producer_groups import SequencePosition, TransactionInfo

if TYPE_CHECKING:
    from lsmq.transactions import TransactionalProducer


class Outcome(StrEnum):
    """What a check says. ``UNKNOWN``: ask again later."""

    COMMIT = "commit"
    ROLLBACK = "rollback"
    UNKNOWN = "unknown"


class Transaction:
    """Made by a :class:`TransactionalProducer`. Sends return when the messages are durable; nobody sees them.

    Send everything, then do the local step, then leave the block. An ``Exception`` in the block rolls back. After one
    that is none (a cancelled task, an interrupt) nobody knows how far the local step came: it is left open, and asked
    about. :meth:`commit` and :meth:`roll_back` do the same without a block. Where one raises an error that is
    ``retriable``, it can be called again; the producer also says so itself when the broker asks.
    """

    def __init__(
        self, producer: TransactionalProducer, reference: str, sequence: Sequence | None = None, position: str = ""
    ) -> None:
        self.reference = reference
        self.position = position
        self.id: str | None = None
        self._producer = producer
        self._sequence = sequence
        self._parts = 0
        self._in_doubt = False
        self._left_open = False
        self._sending = asyncio.Lock()
        self._info: TransactionInfo | None = None

    @property
    def info(self) -> TransactionInfo | None:
        """As the answer to the last request said; ``None`` before the first message."""
        return self._info

    async def send(self, topic: str, body: Body, **options: Unpack[MessageOptions]) -> None:
        """Store one message, not to be seen; ``options`` as with :meth:`lsmq.Producer.send`.

        Costs a request; :meth:`send_many` sends many in one.
        """
        tracing = self._producer._client._tracing
        if tracing is not None and not tracing.is_sending:
            return await tracing.send(topic, options, lambda traced: self.send(topic, body, **traced))
        await self._send([message_fields(topic, body, **options)])

    async def send_many(self, topic: str, messages: Iterable[Body | tuple[Key | None, Body]]) -> None:
        """Store many messages, each a body or a pair of key and body, in one request."""
        check_many(messages)
        tracing = self._producer._client._tracing
        if tracing is not None and not tracing.is_sending:
            return await tracing.send(topic, {}, lambda _: self.send_many(topic, messages))
        headers = () if tracing is None else tracing.headers
        pairs = map(key_and_body, messages)
        await self._send([message_fields(topic, body, key=key, headers=headers) for key, body in pairs])

    async def _send(self, messages: list[dict[str, Any]]) -> None:
        if not messages:
            return
        async with self._sending:
            self._check_whole()
            if self.id is None:
                taken = None if self._sequence is None else self._sequence._taken
                self._in_doubt = True
                try:
                    self._info = await self._producer._begin(self.reference, messages, taken, self.position)
                except LsmqError as error:
                    self._in_doubt = bool(error.details.get("maybe_stored"))
                    raise
                self.id = self._info.id
            else:
                self._in_doubt = True
                try:
                    await self._producer._add(self.id, self._parts, messages)
                except LsmqError as error:
                    self._in_doubt = error.retriable
                    raise
            self._in_doubt = False
            self._parts += 1

    def _check_whole(self) -> None:
        """Nothing goes on a send that nobody knows the end of."""
        if self._in_doubt:
            raise InvalidRequest(
                f"a send of transaction {self.id or '(none yet)'} has failed, and its messages may be stored or"
                " not: roll it back",
                transaction=self.id,
            )

    async def commit(self) -> None:
        """Decide that consumers see it. Raises ``TransactionDecided`` when it was rolled back.

        Returns when that is durable, and mostly when it is seen: see ``info.delivered``. Raises ``InvalidRequest`` when
        a send before has failed, or was cancelled, so that it may be stored or not.
        """
        self._check_whole()
        if self.id is not None:
            self._info = await self._producer._decide(self.id, Outcome.COMMIT)

    async def roll_back(self) -> None:
        """Decide that nobody ever sees it. Raises ``TransactionDecided`` when it was committed."""
        if self.id is not None:
            self._info = await self._producer._decide(self.id, Outcome.ROLLBACK)

    def leave_open(self) -> None:
        """Decide nothing here: the local step has failed, and may be done all the same. The check will be asked."""
        self._left_open = True

    async def __aenter__(self) -> Self:
        await self._producer.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if self._left_open:
                return
            if error is None:
                try:
                    self._check_whole()
                except InvalidRequest:
                    await self.roll_back()
                    raise
                await self.commit()
            elif isinstance(error, Exception):
                try:
                    await self.roll_back()
                except LsmqError as second:
                    error.add_note(f"rolling back transaction {self.id} failed as well: {second}")
        finally:
            if self.id is not None:
                self._producer._leave_open(self.id)


class Sequence:
    """Transactions that follow one another, each committed with how far the work is. Made by ``producer.take``.

    ``position`` is what the last committed transaction said, whoever committed it.
    """

    def __init__(self, producer: TransactionalProducer, taken: SequencePosition) -> None:
        self.name = taken.sequence
        self.position = taken.position
        self._producer = producer
        self._taken = taken

    def transaction(self, position: str, reference: str = "") -> Transaction:
        """The next transaction; when it is committed, the sequence stands at ``position`` (1,024 characters)."""
        return _SequenceTransaction(self._producer, reference, self, position)


class _SequenceTransaction(Transaction):
    async def commit(self) -> None:
        if self.id is None:
            raise InvalidRequest("a transaction of a sequence needs a message to be committed")
        await super().commit()
        assert self._sequence is not None
        self._sequence.position = self.position


def message_fields(
    topic: str,
    body: Body,
    *,
    key: Key | None = None,
    tag: str | None = None,
    queue: int | str | None = None,
    properties: Mapping[str, str] | None = None,
    headers: Iterable[tuple[str, bytes]] = (),
    priority: int = 0,
    subpriority: int = 0,
    delete: bool = False,
    type: str | None = None,
    ttl_ms: int | None = None,
    expires_at_ms: int | None = None,
    dedupe_id: str | None = None,
    delay_ms: int | None = None,
    deliver_at_ms: int | None = None,
) -> dict[str, Any]:
    """As the HTTP API takes it. Raises ``InvalidRequest`` for what no record can hold."""
    if not isinstance(topic, str):
        raise InvalidRequest(f"topic is {topic!r}; it must be the name of a topic")
    priority_value(priority, subpriority)  # Which checks them.
    check_properties(properties)
    if tag is not None:
        check_tag(tag)
    if key is not None:
        check_key(key)
    if type is not None:
        check_type(type)
    if dedupe_id is not None:
        dedupe_hash(dedupe_id)  # Which checks it.
        check_not_later(delay_ms or deliver_at_ms or 0)
    packed = body_bytes(body)
    if delete:
        check_delete(key, packed)
    now_ms = runtime.wall_ms()
    expiry_value(ttl_ms, expires_at_ms, due_value(delay_ms, deliver_at_ms, now_ms), now_ms)
    optional = {
        "key": key,
        "tag": tag,
        "queue": queue if queue is None or isinstance(queue, str) else whole_queue(queue),
        "properties": properties and dict(properties),
        "headers": [{"name": name, "value": value} for name, value in check_headers(headers)] or None,
        "priority": priority or None,
        "subpriority": subpriority or None,
        "delete": delete or None,
        "type": type,
        "ttl_ms": ttl_ms,
        "expires_at_ms": expires_at_ms,
        "dedupe_id": dedupe_id,
        "delay_ms": delay_ms or None,
        "deliver_at_ms": deliver_at_ms or None,
    }
    return {
        "topic": topic,
        "body": packed,
        **{name: value for name, value in optional.items() if value is not None},
    }
