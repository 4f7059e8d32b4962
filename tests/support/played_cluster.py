"""A cluster whose leaderships a test decides: several front doors to one real node, which has the messages.

Each door answers for the shards it leads, and says ``not_leader`` for others, as a node of a cluster does. It describes
topics with the routes *it* knows, which may lag. A door that is paused takes requests and answers none. So elections
happen exactly when a test says, and what is stored is really stored.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any, Self

import aiohttp
import msgpack
from aiohttp import web

from lsmq.record_batch import Column, RecordBatch, parse_message_id
from lsmq.topics import TOPIC_ID_HEADER, Topic, parse_ranges

MSGPACK = "application/msgpack"


class Door:
    """One node of the played cluster. ``known`` is what it believes: shard to leader's number (or None) and epoch."""

    def __init__(self, cluster: PlayedCluster, number: int) -> None:
        self.number = number
        self.url = ""
        self.known: dict[int, tuple[int | None, int]] = {}
        self.requests: Counter[str] = Counter()
        self.refusals: list[dict[str, Any]] = []
        self.open = asyncio.Event()
        self.open.set()
        self._cluster = cluster
        self._pause_after = ""
        self.paused = asyncio.Event()  # set once `pause_after` has come true
        self._news = asyncio.Condition()

    async def start(self) -> None:
        application = web.Application(client_max_size=64 << 20)
        application.router.add_route("*", "/{path:.*}", self._handle)
        self._runner = web.AppRunner(application, access_log=None, shutdown_timeout=0.1)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        host, port = self._runner.addresses[0][:2]
        self.url = f"http://{host}:{port}"

    async def stop(self) -> None:
        """Gone: connections break, new ones are refused."""
        self.open.set()
        await self._runner.cleanup()

    def pause(self) -> None:
        self.open.clear()

    def pause_after(self, kind: str) -> None:
        """Pause when the next request of the data plane whose path ends in ``kind`` is carried out and not answered, or
        another one of the method ``kind``."""
        self._pause_after = kind

    def resume(self) -> None:
        self.open.set()

    async def asked(self, kind: str, count: int) -> None:
        """Return once so many requests whose path ends in ``kind`` have come."""
        async with self._news:
            await self._news.wait_for(lambda: self.requests[kind] >= count)

    def refuse(self, *errors: dict[str, Any]) -> None:
        """Answer the next requests of the data plane with these errors, whoever leads."""
        self.refusals.extend(errors)

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        body = await request.read()
        await self.open.wait()
        kind = request.path.rpartition("/")[2]
        async with self._news:
            self.requests[kind] += 1
            self._news.notify_all()
        try:
            return await self._answer(request, body)
        finally:
            await self.open.wait()  # Paused meanwhile: the answer is late as well.

    async def _answer(self, request: web.Request, body: bytes) -> web.StreamResponse:
        cluster = self._cluster
        parts = request.path.strip("/").split("/")
        if request.method in ("GET", "PUT") and parts[:2] == ["v1", "topics"] and len(parts) <= 3:
            return await cluster.forward(request, body, self._describe)
        if parts[:2] == ["v1", "topics"] and len(parts) == 4:
            topic = await cluster.topic(parts[2])
        elif parts[1] == "groups" and len(parts) == 4:
            topic = await cluster.topic(request.query.get("topic") or msgpack.unpackb(body)["topic"])
        elif parts[1] == "messages":
            topic = next(found for found in await cluster.topics() if found.id == parse_message_id(parts[2])[0])
        else:
            answer = await cluster.forward(request, body)
            self._carried_out(request.method)
            return answer
        if self.refusals:
            return web.json_response({"error": self.refusals.pop(0)}, status=503)
        expected = request.headers.get(TOPIC_ID_HEADER)
        if expected is not None and int(expected) != topic.id:
            error = {"code": "topic_replaced", "message": "another topic by now", "id": topic.id}
            return web.json_response({"error": error}, status=409)
        shards = {topic.route(queue).shard for queue in _queues(request, body, parts)}
        for shard in sorted(shards):
            if cluster.leaders[shard][0] != self.number:
                return self._not_leader(shard)
        answer = await cluster.forward(request, body)
        self._carried_out(parts[-1])
        await self.open.wait()
        for shard in sorted(shards):
            if cluster.leaders[shard][0] != self.number:
                return self._not_leader(shard)  # Deposed before it answered.
        return answer

    def _carried_out(self, kind: str) -> None:
        if kind == self._pause_after:
            self._pause_after = ""
            self.pause()
            self.paused.set()

    def _not_leader(self, shard: int) -> web.Response:
        leader, epoch = self.known[shard]
        error = {
            "code": "not_leader",
            "message": f"node {self.number} does not lead shard {shard}",
            "retriable": True,
            "refresh_route": True,
            "leader": None if leader is None else self._cluster.doors[leader].url,
            "epoch": epoch,
            "shard": shard,
        }
        return web.json_response({"error": error}, status=421)

    def _describe(self, answer: Any) -> Any:
        if "topics" in answer:
            return {"topics": [self._describe(topic) for topic in answer["topics"]]}
        for route in answer.get("routes", ()):
            leader, epoch = self.known[route["shard"]]
            route["leader"] = None if leader is None else self._cluster.doors[leader].url
            route["epoch"] = epoch
        return answer


class PlayedCluster:
    """``async with PlayedCluster(node.url) as cluster``; ``leaders`` is the truth, shard to door and epoch."""

    def __init__(self, upstream: str, *, doors: int = 3, shards: int = 1) -> None:
        self.upstream = upstream
        self.leaders: dict[int, tuple[int | None, int]] = {shard: (shard % doors, 1) for shard in range(shards)}
        self.doors = [Door(self, number) for number in range(doors)]

    async def __aenter__(self) -> Self:
        self._session = aiohttp.ClientSession(auto_decompress=False)
        for door in self.doors:
            door.known = dict(self.leaders)
            await door.start()
        return self

    async def __aexit__(self, *failure: object) -> None:
        for door in self.doors:
            await door.stop()
        await self._session.close()

    @property
    def urls(self) -> list[str]:
        return [door.url for door in self.doors]

    def elect(self, shard: int, leader: int | None, *, tell: list[int] | None = None) -> None:
        """Another leader, in the next epoch; all doors know of it, or those in ``tell``."""
        self.leaders[shard] = (leader, self.leaders[shard][1] + 1)
        for number in range(len(self.doors)) if tell is None else tell:
            self.doors[number].known[shard] = self.leaders[shard]

    async def topics(self) -> list[Topic]:
        async with self._session.get(f"{self.upstream}/v1/topics") as answer:
            return [Topic.from_dict(fields) for fields in (await answer.json())["topics"]]

    async def topic(self, name: str) -> Topic:
        return next(topic for topic in await self.topics() if topic.name == name)

    async def forward(self, request: web.Request, body: bytes, change: Any = None) -> web.Response:
        passed = "Accept", "Content-Type", TOPIC_ID_HEADER
        headers = {name: request.headers[name] for name in passed if name in request.headers}
        url = self.upstream + request.path_qs
        async with self._session.request(request.method, url, headers=headers, data=body) as answer:
            content = await answer.read()
            if change is not None and answer.status < 300:
                assert answer.content_type == MSGPACK
                content = msgpack.packb(change(msgpack.unpackb(content)))
            kept = {name: text for name, text in answer.headers.items() if name.startswith("Lsmq-")}
            kept["Content-Type"] = answer.content_type
            return web.Response(status=answer.status, headers=kept, body=content)


def _queues(request: web.Request, body: bytes, parts: list[str]) -> list[int]:
    """The queues that a request of the data plane is about."""
    if parts[1] == "messages":
        return [parse_message_id(parts[2])[1]]
    if parts[-1] == "batches":
        return list(RecordBatch(body).column(Column.QUEUE))
    if request.method == "GET":
        return [queue for part in parse_ranges(request.query["queues"]) for queue in (part[0], part[-1])]
    packed = msgpack.unpackb(body)["queues"]
    return [int.from_bytes(packed[start : start + 4], "little") for start in range(0, len(packed), 4)]
