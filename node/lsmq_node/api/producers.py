"""Going on with the id of an idempotent producer, in the place of another one."""

from __future__ import annotations

from aiohttp import web

from lsmq.errors import (
    InvalidRequest,
    NotEnoughReplicas,
    NotLeader,
    ProducerFenced,
    TooManyProducers,
    TopicReplaced,
    UnknownTopic,
)

from . import schemas
from .codec import answer
from .routing import Call, Content, Parameter, Routes
from .schema import flag, integer, object_of

ROUTES = Routes("messages")

_TAKE = object_of(
    {
        "shard": schemas.COUNT,
        "epoch": integer(1, 2**32 - 1, "The epoch that is to begin; null: the next one.", null=True, default=None),
        "new": flag("Refused with `producer_fenced` where that epoch has begun, whoever began it.", default=False),
    },
    required=("shard",),
)
_TAKEN = object_of(
    {
        "epoch": schemas.COUNT,
        "position": integer(0, 2**63 - 1, "Of the last batch that said one; null: none did.", null=True),
    }
)


@ROUTES.post(
    "/v1/topics/{topic}/producers/{producer}/take",
    Content("Older epochs are fenced at this shard, durably; sequences begin at 0.", _TAKEN),
    parameters=(Parameter("producer", integer(1, 2**63 - 1), "Id of the producer."),),
    request=Content("Which shard, and which epoch.", _TAKE),
    errors=(UnknownTopic, TopicReplaced, ProducerFenced, TooManyProducers, NotLeader, NotEnoughReplicas),
)
async def take_producer(call: Call) -> web.StreamResponse:
    """Go on with a producer's id.

    Once this is answered no batch of an older epoch is stored any more, and the position is that of the last one that
    was. The same `epoch` again is answered alike while nothing came in it; of several that begin one with `new` one
    does, and a request that comes late, and once more, does nothing.
    """
    topic = await call.topic()
    document = await call.checked_document()
    shard, producer = document["shard"], call.path("producer")
    if shard >= call.broker.topology.shard_count:
        count = call.broker.topology.shard_count
        raise InvalidRequest(f"shard is {shard}; there are {count}, from 0 on", field="shard", limit=count - 1)
    epoch, position = await call.broker.take_producer(
        topic, shard, int(producer), document.get("epoch"), document.get("new", False)
    )
    return answer(call.request, {"epoch": epoch, "position": None if position < 0 else position})
