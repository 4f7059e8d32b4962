"""Sending messages as JSON or msgpack: every message checked, packed into one record batch a shard.

The check accepts fast and explains slowly: a message that is plainly right is packed at once; one that is
not goes through the schema of the OpenAPI document, which says what is wrong with it.
"""

from __future__ import annotations

import base64
import binascii
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

from lsmq.errors import (
    DiskFull,
    InvalidRequest,
    MessageTooLarge,
    NotEnoughReplicas,
    NotLeader,
    StoreBusy,
    TooManyMessages,
    TopicReplaced,
    UnknownQueue,
    UnknownTopic,
)
from lsmq.messages import Headers, Key
from lsmq.record_batch import BatchBuilder, RecordBatch, key_hash, message_id
from lsmq_node.broker import Broker, ProduceRequest
from lsmq_node.broker.admission import Admission
from lsmq_node.storage import Topic
from lsmq_node.workers import Turns

from . import schemas
from .batches import PRODUCER_ERRORS
from .codec import answer
from .routing import Call, Content, Routes
from .schema import Schema, check

_FIELDS = schemas.MESSAGE_TO_SEND["properties"]

ROUTES = Routes("messages")


@dataclass(slots=True)
class Part:
    """What goes to one shard: its records, and where each stood in the request."""

    builder: BatchBuilder = field(default_factory=BatchBuilder)
    places: list[int] = field(default_factory=list)


def values_of(message: dict[str, Any]) -> int:
    """How many values packing a message looks at, nearly."""
    return 1 + len(message.get("properties") or ()) + len(message.get("headers") or ())


class Packer:
    """Checks the messages of one request and packs them by shard."""

    __slots__ = ("_broker", "_limit", "_producer_id", "_topic", "parts")

    def __init__(self, broker: Broker, topic: Topic, producer_id: int = 0) -> None:
        """``producer_id``: 0 for a request that is not idempotent."""
        self._broker = broker
        self._producer_id = producer_id
        self._topic = topic
        self._limit = broker.admission.max_message_bytes(topic)
        self.parts: dict[int, Part] = {}

    def add(self, index: int, message: Any) -> None:
        """Pack one message. Raises an :class:`InvalidRequest` whose field begins ``messages[index]``."""
        if type(message) is not dict or not message.keys() <= _FIELDS.keys():
            self._explain(index, message)
        queue, tag = message.get("queue"), message.get("tag")
        priority, properties = message.get("priority", 0), message.get("properties")
        key = self._bytes(index, message, "key")
        delete = "delete" in message and self._delete(index, message, key)
        body = b"" if delete else self._body(index, message)
        key_digest = None if key is None else key_hash(key)
        if tag is not None and type(tag) is not str:
            self._explain(index, message)
        if type(priority) is not int or not 0 <= priority <= 255 or message.get("delay_ms", 0) != 0:
            self._explain(index, message)
        if properties is not None:
            check(properties, _FIELDS["properties"], f"messages[{index}].properties")
        headers = self._headers(index, message) if "headers" in message else None
        topic = self._topic
        if queue is None:
            queue = self._keyless_queue() if key_digest is None else key_digest % topic.key_queues
        elif type(queue) is not int or not 0 <= queue < topic.queues:
            self._refuse_queue(index, message, queue)
        part = self.parts.get(shard := self._broker.shard_of(topic, queue))
        if part is None:
            part = self.parts[shard] = Part()
        part.places.append(index)
        try:
            part.builder.add(
                queue,
                body,
                key=key,
                tag=tag,
                priority=priority,
                properties=properties,
                headers=headers,
                delete=delete,
                key_hash_hint=key_digest,
            )
        except UnicodeEncodeError:
            self._explain(index, message)

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
        NotLeader,
        NotEnoughReplicas,
        TopicReplaced,
        *PRODUCER_ERRORS,
        StoreBusy,
        DiskFull,
    ),
)
async def send_messages(call: Call) -> web.StreamResponse:
    """Send messages.

    A message without `queue` goes to the queue its key's hash gives, without a key to the queues in turn. All
    messages of a request that belong to one shard are stored, or none is.
    """
    broker = call.broker
    topic = await call.topic()
    document = await call.document()
    messages = messages_of(document, call.schema, broker.admission)
    producer = document.get("producer") or {"id": 0, "sequence": 0}
    packer = Packer(broker, topic, producer["id"])
    turns = Turns()
    for index, message in enumerate(messages):
        packer.add(index, message)
        await turns.after(values_of(message))
    if producer["id"] and len(packer.parts) > 1:
        raise InvalidRequest(
            "producer: sequences are counted for each shard, and these messages belong to several; "
            "send one request a shard (see the topic's routes)",
            field="producer",
        )
    batches = []
    for shard, part in packer.parts.items():
        packed = part.builder.build(
            producer_id=producer["id"], producer_epoch=producer.get("epoch", 0), sequence=producer["sequence"]
        )
        batches.append((shard, RecordBatch(packed, verify=False)))
    appended = await broker.produce(ProduceRequest(topic, batches, call.ack(document.get("ack"))))
    results: list[Any] = [None] * len(messages)
    for part, stored in zip(packer.parts.values(), appended, strict=True):
        for place, queue, offset in zip(part.places, part.builder.queues, stored.offsets.tolist(), strict=True):
            results[place] = {"queue": queue, "offset": offset, "id": message_id(topic.id, queue, offset)}
    headers = {"Lsmq-Duplicate": "1"} if any(stored.duplicate for stored in appended) else None
    return answer(call.request, {"results": results}, headers=headers)
