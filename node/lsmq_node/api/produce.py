"""Sending messages as JSON or msgpack: every message checked, packed into one record batch a shard.

The check accepts fast and explains slowly: a message that is plainly right is packed at once; one that is
not goes through the schema of the OpenAPI document, which says what is wrong with it.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

from lsmq.errors import (
    DiskFull,
    InvalidQueueName,
    InvalidRequest,
    MessageTooLarge,
    NotEnoughReplicas,
    NotLeader,
    QuotaExceeded,
    StoreBusy,
    TooManyDelayed,
    TooManyMessages,
    TooManyQueues,
    TopicReplaced,
    UnknownQueue,
    UnknownTopic,
)
from lsmq.message_times import due_value, expiry_value
from lsmq.messages import MAX_PRIORITY, Headers, Key, check_not_later, dedupe_hash, dedupe_queue, named_dedupe_hash
from lsmq.queue_names import SEPARATOR, check_queue_name
from lsmq.record_batch import BatchBuilder, RecordBatch, delayed_id, key_hash, message_id
from lsmq_node.broker import Broker, ProduceRequest
from lsmq_node.broker.admission import Admission
from lsmq_node.storage import Appended, StoredTopic
from lsmq_node.workers import LoopTurns

from . import schemas
from .batches import PRODUCER_ERRORS
from .codec import Format, answer, encode
from .forwarding import ShardPart, each_at_leader, is_split
from .routing import Call, Content, Routes
from .schema import Schema, check

_FIELDS = schemas.MESSAGE_TO_SEND["properties"]

ROUTES = Routes("messages")


@dataclass(slots=True)
class ShardMessages:
    """What goes to one shard, whose time is ``now_ms``: its records, and where each stood in the request."""

    now_ms: int
    builder: BatchBuilder = field(default_factory=BatchBuilder)
    places: list[int] = field(default_factory=list)
    #: Where queues are named: the builder's queues count these.
    names: dict[str, int] = field(default_factory=dict)

    @property
    def joined_names(self) -> bytes:
        return SEPARATOR.join(self.names).encode()


def values_of(message: dict[str, Any]) -> int:
    """How many values packing a message looks at, nearly."""
    return 1 + len(message.get("properties") or ()) + len(message.get("headers") or ())


class Packer:
    """Checks the messages of one request and packs them by shard."""

    __slots__ = ("_broker", "_limit", "_producer_id", "_shards", "_topic", "parts")

    def __init__(self, broker: Broker, topic: StoredTopic, producer_id: int = 0) -> None:
        """``producer_id``: 0 for a request that is not idempotent."""
        self._broker = broker
        self._producer_id = producer_id
        self._topic = topic
        self._limit = broker.admission.max_message_bytes(topic)
        self._shards: dict[str, int] = {}  # of the names met
        self.parts: dict[int, ShardMessages] = {}

    def add(self, index: int, message: Any) -> None:
        """Pack one message. Raises an :class:`InvalidRequest` whose field begins ``messages[index]``."""
        if type(message) is not dict or not message.keys() <= _FIELDS.keys():
            self._explain(index, message)
        queue, tag = message.get("queue"), message.get("tag")
        priority, properties = message.get("priority", 0), message.get("properties")
        subpriority, kind = message.get("subpriority", 0), message.get("type")
        key = self._bytes(index, message, "key")
        delete = "delete" in message and self._delete(index, message, key)
        body = b"" if delete else self._body(index, message)
        key_digest = None if key is None else key_hash(key)
        dedupe = 0 if message.get("dedupe_id") is None else self._dedupe(index, message)
        if tag is not None and type(tag) is not str:
            self._explain(index, message)
        if kind is not None and type(kind) is not str:
            self._explain(index, message)
        if type(priority) is not int or not 0 <= priority <= MAX_PRIORITY:
            self._explain(index, message)
        if type(subpriority) is not int or not 0 <= subpriority <= MAX_PRIORITY:
            self._explain(index, message)
        if properties is not None:
            check(properties, _FIELDS["properties"], f"messages[{index}].properties")
        headers = self._headers(index, message) if "headers" in message else None
        topic = self._topic
        if topic.named:
            if dedupe and type(queue) is str:
                dedupe = named_dedupe_hash(dedupe, queue)
            part, queue = self._named_queue(index, message, queue)
        elif queue is None:
            if key_digest is not None:
                queue = key_digest % topic.key_queues
            else:
                queue = dedupe_queue(dedupe, topic.key_queues) if dedupe else self._keyless_queue()
        elif type(queue) is not int or not 0 <= queue < topic.queues:
            self._refuse_queue(index, message, queue)
        if not topic.named:
            part = self._part(self._broker.shard_of(topic, queue))
        due_ms = expires = 0
        if "delay_ms" in message or "deliver_at_ms" in message:
            due_ms = self._due_ms(index, message, part.now_ms)
        if "ttl_ms" in message or "expires_at_ms" in message:
            expires = self._expires(index, message, due_ms, part.now_ms)
        if due_ms and dedupe:
            self._refuse_later(index, due_ms)
        part.places.append(index)
        try:
            part.builder.add(
                queue,
                body,
                key=key,
                tag=tag,
                priority=priority | subpriority << 8,
                properties=properties,
                headers=headers,
                delete=delete,
                kind=kind,
                expires=expires,
                due_ms=due_ms,
                key_hash_hint=key_digest,
                dedupe_hash=dedupe,
            )
        except InvalidRequest:
            self._explain(index, message)

    def _dedupe(self, index: int, message: dict[str, Any]) -> int:
        """The hash of the message's deduplication id."""
        path = f"messages[{index}].dedupe_id"
        self._broker.admission.dedupe_ids(self._topic, path)
        if type(message["dedupe_id"]) is not str:
            self._explain(index, message)
        try:
            return dedupe_hash(message["dedupe_id"])
        except InvalidRequest as error:
            raise InvalidRequest(f"messages[{index}].{error.message}", **{**error.details, "field": path}) from error

    def _refuse_later(self, index: int, due_ms: int) -> None:
        try:
            check_not_later(due_ms)
        except InvalidRequest as error:
            field = f"messages[{index}].dedupe_id"
            raise InvalidRequest(f"messages[{index}]: {error.message}", **{**error.details, "field": field}) from error

    def _due_ms(self, index: int, message: dict[str, Any], now_ms: int) -> int:
        """As the column has it: a delay, or a time."""
        for name in ("delay_ms", "deliver_at_ms"):
            if name in message:
                check(message[name], _FIELDS[name], f"messages[{index}].{name}")
        try:
            return due_value(message.get("delay_ms"), message.get("deliver_at_ms"), now_ms)
        except InvalidRequest as error:
            field = f"messages[{index}].{error.details['field']}"
            raise InvalidRequest(f"{field}: {error.message}", **{**error.details, "field": field}) from error

    def _expires(self, index: int, message: dict[str, Any], due_ms: int, now_ms: int) -> int:
        """As the column has it: a time to live, or a moment; 0 for never."""
        for name in ("ttl_ms", "expires_at_ms"):
            if type(message.get(name)) is not int:
                check(message.get(name), _FIELDS[name], f"messages[{index}].{name}")
        try:
            return expiry_value(message.get("ttl_ms"), message.get("expires_at_ms"), due_ms, now_ms)
        except InvalidRequest as error:
            field = f"messages[{index}].{error.details['field']}"
            raise InvalidRequest(f"messages[{index}]: {error.message}", **{**error.details, "field": field}) from error

    def _part(self, shard: int) -> ShardMessages:
        part = self.parts.get(shard)
        if part is None:
            part = self.parts[shard] = ShardMessages(self._broker.admission.present_ms(shard))
        return part

    def _named_queue(self, index: int, message: dict[str, Any], queue: Any) -> tuple[ShardMessages, int]:
        """The part of a queue by its name, and its place among the names there."""
        path = f"messages[{index}].queue"
        if type(queue) is not str:
            if queue is not None:
                check(message, schemas.MESSAGE_TO_SEND, f"messages[{index}]")
            found = "is missing" if queue is None else f"is {queue!r}"
            raise InvalidRequest(
                f"{path} {found}; topic {self._topic.name!r} has named queues: each message names its queue", field=path
            )
        shard = self._shards.get(queue)
        if shard is None:
            try:
                check_queue_name(queue)
            except InvalidQueueName as error:
                raise InvalidQueueName(f"{path}: {error.message}", field=path) from error
            shard = self._shards[queue] = self._broker.names.shard_of(self._topic, queue)
        part = self._part(shard)
        return part, part.names.setdefault(queue, len(part.names))

    def _keyless_queue(self) -> int:
        """Where a message without queue and key goes: of a producer all to one queue, so that a repeat is the same."""
        if self._producer_id:
            return self._producer_id % self._topic.queues
        return self._broker.next_queue(self._topic)

    def _body(self, index: int, message: dict[str, Any]) -> bytes:
        body = self._bytes(index, message, "body")
        if body is None:
            raise InvalidRequest(
                f"messages[{index}] has neither body nor body_b64; send one of the two, or delete with a key",
                field=f"messages[{index}].body",
            )
        if isinstance(body, str):
            body = body.encode()
        if len(body) > self._limit:
            raise MessageTooLarge(
                f"messages[{index}] has a body of {len(body)} bytes, the limit is {self._limit} "
                "(max_message_bytes of the node or topic); store large bodies elsewhere and send a reference",
                field=f"messages[{index}].body",
                limit=self._limit,
                size=len(body),
            )
        return body

    def _bytes(self, index: int, message: dict[str, Any], name: str, at: str = "") -> str | bytes | None:
        """Field ``name`` as text or bytes, or ``name_b64`` decoded; ``None`` where there is neither."""
        plain, encoded = message.get(name), message.get(f"{name}_b64")
        if encoded is None:
            if type(plain) is str and not plain.isascii():
                try:
                    plain.encode()
                except UnicodeEncodeError:
                    self._explain(index, message)
            elif plain is not None and type(plain) is not str and type(plain) is not bytes:
                self._explain(index, message)
            return plain
        path = f"messages[{index}]{at}.{name}_b64"
        if plain is not None:
            raise InvalidRequest(f"{path} is given beside {name}; send one of the two", field=path)
        if type(encoded) is not str:
            self._explain(index, message)
        try:
            return base64.b64decode(encoded, validate=True)
        except (binascii.Error, ValueError) as error:
            raise InvalidRequest(f"{path} is not valid base64: {error}", field=path) from error

    def _headers(self, index: int, message: dict[str, Any]) -> Headers:
        check(message["headers"], _FIELDS["headers"], f"messages[{index}].headers")
        found = []
        for place, header in enumerate(message["headers"]):
            value = self._bytes(index, header, "value", f".headers[{place}]")
            if value is None:
                path = f"messages[{index}].headers[{place}]"
                raise InvalidRequest(f"{path} has neither value nor value_b64; send one of the two", field=path)
            found.append((header["name"], value.encode() if isinstance(value, str) else value))
        return tuple(found)

    def _delete(self, index: int, message: dict[str, Any], key: Key | None) -> bool:
        if type(message["delete"]) is not bool:
            self._explain(index, message)
        if not message["delete"]:
            return False
        if key is None:
            path = f"messages[{index}].delete"
            raise InvalidRequest(f"{path} says that a key is gone, and there is no key; give one", field=path)
        if message.get("body") or message.get("body_b64"):
            path = f"messages[{index}].body"
            raise InvalidRequest(f"{path} is given beside delete; a deletion has no body", field=path)
        return True

    def _refuse_queue(self, index: int, message: dict[str, Any], queue: Any) -> None:
        check(message, schemas.MESSAGE_TO_SEND, f"messages[{index}]")
        if isinstance(queue, str):
            raise InvalidRequest(
                f"messages[{index}].queue is text; the queues of topic {self._topic.name!r} are numbers",
                field=f"messages[{index}].queue",
            )
        self._broker.admission.queue(self._topic, queue)

    def _explain(self, index: int, message: Any) -> None:
        """Say by the schema what the quick check did not like."""
        check(message, schemas.MESSAGE_TO_SEND, f"messages[{index}]")
        raise InvalidRequest(f"messages[{index}] is not a message", field=f"messages[{index}]")


def messages_of(document: Any, schema: Schema, admission: Admission) -> list[Any]:
    """The messages of a body, all of which is checked but them: that is done as they are packed."""
    messages: Any = document.get("messages") if type(document) is dict else None
    if type(messages) is list:
        admission.message_count(len(messages), "messages has")
    if type(messages) is not list or not messages or document.keys() != {"messages"}:
        fields = schema["properties"]
        check(document, {**schema, "properties": {**fields, "messages": {**fields["messages"], "items": {}}}}, "")
    return messages  # type: ignore[no-any-return]  # The check refuses anything else.


@ROUTES.post(
    "/v1/topics/{topic}/messages",
    Content(
        "Stored, as durably as the flush mode says; results stand in the order of the messages.",
        schemas.SENT,
        headers={"Lsmq-Duplicate": "`1` when the producer's request had been stored before."},
    ),
    request=Content("The messages.", schemas.SEND),
    errors=(
        UnknownTopic,
        UnknownQueue,
        MessageTooLarge,
        TooManyMessages,
        TooManyDelayed,
        InvalidQueueName,
        TooManyQueues,
        NotLeader,
        NotEnoughReplicas,
        TopicReplaced,
        *PRODUCER_ERRORS,
        StoreBusy,
        DiskFull,
        QuotaExceeded,
    ),
)
async def send_messages(call: Call) -> web.StreamResponse:
    """Send messages.

    Where queues are named, each message names its `queue`, which is made if it is new. Otherwise a
    message without `queue` goes to the queue its key's hash gives, without a key to the queues in turn. All
    messages of a request that belong to one shard are stored, or none is. One that is to come later is stored at once,
    and has no offset before it is due.
    """
    broker = call.broker
    topic = await call.topic()
    document = await call.document()
    messages = messages_of(document, call.schema, broker.admission)
    producer = document.get("producer") or {"id": 0, "sequence": 0}
    packer = Packer(broker, topic, producer["id"])
    turns = LoopTurns()
    for index, message in enumerate(messages):
        packer.add(index, message)
        await turns.after(values_of(message))
    if producer["id"] and len(packer.parts) > 1:
        raise InvalidRequest(
            "producer: sequences are counted for each shard, and these messages belong to several; "
            "send one request a shard (see the topic's routes)",
            field="producer",
        )
    parts = packer.parts
    if is_split(call, parts):
        return answer(call.request, {"results": await _send_to_leaders(call, topic, document, parts)})
    batches = []
    for shard, part in parts.items():
        packed = part.builder.build(
            producer_id=producer["id"], producer_epoch=producer.get("epoch", 0), sequence=producer["sequence"]
        )
        batches.append((shard, RecordBatch(packed, verify=False)))
    ack, flush = call.ack(document.get("ack")), call.flush(document.get("flush"))
    sent = ProduceRequest(topic, batches, ack, flush, [part.joined_names for part in parts.values()])
    results: list[Any] = [None] * len(messages)
    stored = await _store(broker, sent, list(parts.items()))
    for part, (_, found) in zip(parts.values(), stored, strict=True):
        for place, result in zip(part.places, found, strict=True):
            results[place] = result
    headers = {"Lsmq-Duplicate": "1"} if any(appended.duplicate for appended, _ in stored) else None
    return answer(call.request, {"results": results}, headers=headers)


async def _store(
    broker: Broker, request: ProduceRequest, parts: Sequence[tuple[int, ShardMessages]]
) -> list[tuple[Appended, list[dict[str, Any]]]]:
    """Have the batches of some parts stored; of each what became of it, and its messages' results."""
    topic = request.topic
    if not topic.named:
        appended = await broker.produce(request)
        return [
            (stored, _results(topic, shard, part, part.builder.queues, part.builder.queues, stored))
            for (shard, part), stored in zip(parts, appended, strict=True)
        ]
    found = []
    for (shard, part), (stored, numbers) in zip(parts, await broker.produce_named(request), strict=True):
        names = list(part.names)
        called = [names[at] for at in part.builder.queues]
        found.append((stored, _results(topic, shard, part, called, numbers.tolist(), stored)))
    return found


def _results(
    topic: StoredTopic,
    shard: int,
    part: ShardMessages,
    called: Sequence[int | str],
    numbers: Sequence[int],
    stored: Appended,
) -> list[dict[str, Any]]:
    results: list[dict[str, Any]] = [
        {"queue": queue, "offset": offset, "id": message_id(topic.id, number, max(0, offset))}
        for queue, number, offset in zip(called, numbers, stored.offsets.tolist(), strict=True)
    ]
    if stored.repeats is not None:
        for place in stored.repeats.nonzero()[0].tolist():
            results[place]["duplicate"] = True
    for place in (stored.offsets < 0).nonzero()[0].tolist():
        results[place].update(offset=None, id=None, dropped=True)
    for row, due_ms in part.builder.due_times(stored.stored_ms).items():
        results[row].update(offset=None, id=delayed_id(shard, due_ms, results[row]["offset"]), due_ms=due_ms)
    return results


async def _send_to_leaders(
    call: Call, topic: StoredTopic, document: dict[str, Any], parts: Mapping[int, ShardMessages]
) -> list[dict[str, Any]]:
    """The results of messages that belong to shards of several leaders, in their order; there is no producer's id."""
    messages = document["messages"]

    def part_of(shard: int, part: ShardMessages) -> ShardPart:
        async def here() -> dict[str, Any]:
            batch = RecordBatch(part.builder.build(), verify=False)
            ack, flush = call.ack(document.get("ack")), call.flush(document.get("flush"))
            sent = ProduceRequest(topic, ((shard, batch),), ack, flush, (part.joined_names,))
            ((_, results),) = await _store(call.broker, sent, ((shard, part),))
            return {"results": results}

        def body() -> bytes:
            names = list(part.names)
            some = [
                {**messages[place], "queue": names[queue] if topic.named else queue}
                for place, queue in zip(part.places, part.builder.queues, strict=True)
            ]
            return encode({**document, "messages": some}, Format.MSGPACK)

        return ShardPart(shard, here, body)

    answers = await each_at_leader(call, [part_of(shard, part) for shard, part in parts.items()])
    results: list[Any] = [None] * len(messages)
    for part, found in zip(parts.values(), answers, strict=True):
        for place, result in zip(part.places, found["results"], strict=True):
            results[place] = result
    return results
