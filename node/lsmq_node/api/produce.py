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
    EmptyBody,
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
from lsmq.record_batch import BatchBuilder, RecordBatch, key_hash, message_id
from lsmq_node.broker import Ack, Broker
from lsmq_node.config import NodeConfig
from lsmq_node.storage import Topic

from . import schemas
from .codec import answer
from .routing import Call, Content, Route, path_parameters
from .schema import Schema, check

_FIELDS = frozenset({"queue", "key", "tag", "priority", "delay_ms", "properties", "body", "body_b64"})
_ENVELOPE = frozenset({"messages", "ack", "producer"})


@dataclass(slots=True)
class Part:
    """What goes to one shard: its records, and where each stood in the request."""

    builder: BatchBuilder = field(default_factory=BatchBuilder)
    places: list[int] = field(default_factory=list)


class Packer:
    """Checks the messages of one request and packs them by shard."""

    __slots__ = ("_broker", "_limit", "_schema", "_topic", "parts")

    def __init__(self, broker: Broker, topic: Topic, schema: Schema) -> None:
        self._broker = broker
        self._topic = topic
        self._schema = schema
        self._limit = message_limit(broker.config, topic)
        self.parts: dict[int, Part] = {}

    def add(self, index: int, message: Any) -> None:
        """Pack one message. Raises an :class:`InvalidRequest` whose field begins ``messages[index]``."""
        if type(message) is not dict or not message.keys() <= _FIELDS:
            self._explain(index, message)
        queue, key, tag = message.get("queue"), message.get("key"), message.get("tag")
        priority, properties = message.get("priority", 0), message.get("properties")
        body = self._body(index, message)
        key_digest = None
        if key is not None:
            if type(key) is not str:
                self._explain(index, message)
            key_digest = self._digest(index, message, key)
        if tag is not None and type(tag) is not str:
            self._explain(index, message)
        if type(priority) is not int or not 0 <= priority <= 255 or message.get("delay_ms", 0) != 0:
            self._explain(index, message)
        if properties is not None:
            check(properties, self._schema["properties"]["properties"], f"messages[{index}].properties")
        topic = self._topic
        if queue is None:
            queue = self._broker.next_queue(topic) if key_digest is None else key_digest % topic.key_queues
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
                key_hash_hint=key_digest,
            )
        except UnicodeEncodeError:
            self._explain(index, message)

    def _body(self, index: int, message: dict[str, Any]) -> bytes:
        body = message.get("body")
        encoded = message.get("body_b64")
        if encoded is None:
            if type(body) is str:
                try:
                    body = body.encode()
                except UnicodeEncodeError:
                    self._explain(index, message)
            elif type(body) is not bytes:
                if body is None:
                    raise EmptyBody(_EMPTY.format(index=index), field=f"messages[{index}].body")
                self._explain(index, message)
        else:
            path = f"messages[{index}].body_b64"
            if body is not None:
                raise InvalidRequest(f"{path} is given beside body; send one of the two", field=path)
            if type(encoded) is not str:
                self._explain(index, message)
            try:
                body = base64.b64decode(encoded, validate=True)
            except (binascii.Error, ValueError) as error:
                raise InvalidRequest(f"{path} is not valid base64: {error}", field=path) from error
        assert isinstance(body, bytes)
        if not body:
            raise EmptyBody(_EMPTY.format(index=index), field=f"messages[{index}].body")
        if len(body) > self._limit:
            raise MessageTooLarge(
                f"messages[{index}] has a body of {len(body)} bytes, the limit is {self._limit} "
                "(max_message_bytes of the node or topic); store large bodies elsewhere and send a reference",
                field=f"messages[{index}].body",
                limit=self._limit,
                size=len(body),
            )
        return body

    def _digest(self, index: int, message: dict[str, Any], key: str) -> int:
        try:
            return key_hash(key)
        except UnicodeEncodeError:
            self._explain(index, message)
            raise

    def _refuse_queue(self, index: int, message: dict[str, Any], queue: Any) -> None:
        check(message, self._schema, f"messages[{index}]")
        self._broker.check_queue(self._topic, queue)

    def _explain(self, index: int, message: Any) -> None:
        """Say by the schema what the quick check did not like."""
        check(message, self._schema, f"messages[{index}]")
        raise InvalidRequest(f"messages[{index}] is not a message", field=f"messages[{index}]")


_EMPTY = "messages[{index}] has an empty body; a message needs at least one byte in body or body_b64"


def message_limit(config: NodeConfig, topic: Topic) -> int:
    """The most bytes a message of the topic may have."""
    own = topic.options.max_message_bytes
    return config.max_message_bytes if own is None else min(own, config.max_message_bytes)


def _check_envelope(document: Any, config: NodeConfig, schema: Schema) -> list[Any]:
    messages = document.get("messages") if isinstance(document, dict) else None
    if type(messages) is list and len(messages) > config.max_messages_per_request:
        raise TooManyMessages(
            f"messages has {len(messages)} messages, the limit is {config.max_messages_per_request} a "
            "request (max_messages_per_request); send them in parts",
            field="messages",
            limit=config.max_messages_per_request,
            count=len(messages),
        )
    if type(messages) is not list or not messages or document.keys() != {"messages"}:
        # All but the messages themselves, which are checked as they are packed.
        properties = {**schema["properties"], "messages": {**schema["properties"]["messages"], "items": {}}}
        check(document, {**schema, "properties": properties}, "")
    return messages  # type: ignore[return-value]  # The check refuses anything else.


async def produce(call: Call) -> web.StreamResponse:
    """POST /v1/topics/{topic}/messages"""
    broker = call.broker
    topic = await call.topic(call.request.match_info["topic"])
    document = await call.document()
    assert call.route.request is not None and call.route.request.schema is not None
    schema = call.route.request.schema
    messages = _check_envelope(document, broker.config, schema)
    packer = Packer(broker, topic, schema["properties"]["messages"]["items"])
    for index, message in enumerate(messages):
        packer.add(index, message)
    producer = document.get("producer") or {"id": 0, "sequence": 0}
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
    ack = document.get("ack")
    appended = await broker.append(topic, batches, None if ack is None else Ack(ack))
    results: list[Any] = [None] * len(messages)
    for part, stored in zip(packer.parts.values(), appended, strict=True):
        for place, queue, offset in zip(part.places, part.builder.queues, stored.offsets.tolist(), strict=True):
            results[place] = {"queue": queue, "offset": offset, "id": message_id(topic.id, queue, offset)}
    headers = {"Lsmq-Duplicate": "1"} if any(stored.duplicate for stored in appended) else None
    return answer(call.request, {"results": results}, headers=headers)


def routes(config: NodeConfig) -> tuple[Route, ...]:
    """The routes of this module."""
    return (
        Route(
            "POST",
            "/v1/topics/{topic}/messages",
            "sendMessages",
            "messages",
            "Send messages",
            produce,
            {
                200: Content(
                    "Stored, as durably as the flush mode says; results stand in the order of the messages.",
                    schemas.SENT,
                    headers={"Lsmq-Duplicate": "`1` when the producer's request had been stored before."},
                )
            },
            description=(
                "A message without `queue` goes to the queue its key's hash gives, without a key to the "
                "queues in turn. All messages of a request that belong to one shard are stored, or none is."
            ),
            parameters=path_parameters("topic"),
            request=Content("The messages.", schemas.send(config)),
            errors=(
                UnknownTopic,
                UnknownQueue,
                EmptyBody,
                MessageTooLarge,
                TooManyMessages,
                NotLeader,
                NotEnoughReplicas,
                TopicReplaced,
                StoreBusy,
                DiskFull,
            ),
        ),
    )
