"""What people who watch a node ask first: which topics are busy, and which groups are behind."""

from __future__ import annotations

from dataclasses import asdict
from heapq import nlargest
from typing import Final

from aiohttp import web

from lsmq_node.monitoring import OTHERS
from lsmq_node.rights import ResourceKind

from .codec import answer
from .routing import Call, Content, Parameter, Routes
from .schema import integer, list_of, object_of, text

_MOST: Final = 1_000
_LIMIT = Parameter("limit", integer(1, _MOST, default=100), "At most so many topics, and as many groups.")
_RATE = {"type": "number", "minimum": 0}
_COUNT = integer(0)
_TOPIC = object_of(
    {
        "topic": text(),
        "in_per_s": {**_RATE, "description": "Messages that came, where this node leads their shard."},
        "out_per_s": {**_RATE, "description": "Messages that this node gave to consumers."},
        "in_bytes_per_s": _RATE,
        "out_bytes_per_s": _RATE,
    }
)
_GROUP = object_of({"group": text(), "topic": text(), "lag": _COUNT})
_BUSIEST = object_of(
    {
        "topics": list_of(_TOPIC, "Those with the most messages in the last five seconds or so, the busiest first."),
        "groups": list_of(
            _GROUP,
            "Furthest behind in the shards that this node leads, of `metrics_series`; `(others)` are all without one.",
        ),
        "lag_age_ms": integer(0, description="How long ago lags were counted. null: not yet.", null=True),
    }
)

ROUTES = Routes("system")


@ROUTES.get("/v1/busiest", Content("Of this node alone.", _BUSIEST), parameters=(_LIMIT,))
async def get_busiest(call: Call) -> web.StreamResponse:
    """The busiest topics and the groups that are furthest behind, of those that one may describe.

    Nothing is counted for it: both are as old as in /metrics.
    """
    monitoring, limit, sees = call.node.monitoring, call.query["limit"], call.asker.sees

    def shown(group: str, topic: str) -> bool:
        return group == OTHERS or (
            sees(ResourceKind.GROUP, group.partition("/")[0]) and sees(ResourceKind.TOPIC, topic)
        )

    behind = ((pair, lag) for pair, lag in monitoring.lags.series() if lag > 0 and shown(*pair))
    groups = nlargest(limit, behind, lambda each: each[1])
    topics = await call.broker.in_readers(
        lambda: monitoring.traffic.busiest(limit, lambda topic: sees(ResourceKind.TOPIC, topic))
    )
    age_s = monitoring.lags.age_s
    return answer(
        call.request,
        {
            "topics": [asdict(rates) for rates in topics],
            "groups": [{"group": group, "topic": topic, "lag": lag} for (group, topic), lag in groups],
            "lag_age_ms": None if age_s is None else round(age_s * 1000),
        },
    )
