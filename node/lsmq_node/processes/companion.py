"""What a process and its supervisor tell each other, over a socket: a line of JSON each.

::

    to the supervisor   {"is": "up"}        it listens
                        {"is": "serving"}   it is ready, and all shards are led that are not on its lost disks
    from it             {"ended": {"p1": "why"}, "running": ["p0"]}   of all the others, at each change

Its end is the supervisor's, and so the process's.
"""

from __future__ import annotations

import asyncio
import json
import socket

import structlog

from lsmq.errors import LsmqError
from lsmq_coordinator.parts import Part
from lsmq_node.node import Node

MAX_LINE_BYTES = 64 * 1024
_LOOK_S = 0.05

_log = structlog.get_logger("lsmq.processes")


class Companion:
    """At the side of the process: speaks for it, and shows in its readiness how the others are."""

    def __init__(self, name: str, channel: socket.socket) -> None:
        self.name = name
        self._channel = channel
        self._parts: dict[str, Part] = {}

    async def accompany(self, node: Node, stopping: asyncio.Event) -> None:
        """Until cancelled, or the supervisor is gone: then ``stopping`` is set."""
        reader, writer = await asyncio.open_connection(sock=self._channel, limit=MAX_LINE_BYTES)
        self._say(writer, "up")
        async with asyncio.TaskGroup() as tasks:
            serving = tasks.create_task(self._tell_serving(node, writer))
            try:
                while (line := await reader.readline()).endswith(b"\n"):
                    self._heard(node, json.loads(line))
                _log.error("supervisor_gone", why="this process ends with it")
            except ConnectionError as error:
                _log.error("supervisor_gone", why=str(error))
            finally:
                serving.cancel()
                writer.close()
        stopping.set()

    def _heard(self, node: Node, told: dict[str, dict[str, str]]) -> None:
        for name in (*told["running"], *told["ended"]):
            if name not in self._parts and name != self.name:
                self._parts[name] = node.broker.parts.part(f"process {name}", essential=False)
        for name, part in self._parts.items():
            why = told["ended"].get(name)
            if why is None:
                part.running()
            else:
                part.retrying(why)

    async def _tell_serving(self, node: Node, writer: asyncio.StreamWriter) -> None:
        while True:
            if _serves(node):
                break
            await asyncio.sleep(_LOOK_S)
        self._say(writer, "serving")

    @staticmethod
    def _say(writer: asyncio.StreamWriter, what: str) -> None:
        writer.write(json.dumps({"is": what}).encode() + b"\n")


def _serves(node: Node) -> bool:
    """Whether the node is ready, every shard is led, and it serves what it leads; but for shards on its lost disks."""
    topology = node.broker.topology
    try:
        topology.overview("")
    except LsmqError:
        return False
    if node.not_ready():
        return False
    own = node.broker.config.public_url
    lost = topology.lost_shards()
    led = [topology.leadership(shard) for shard in range(topology.shard_count) if shard not in lost]
    return all(each.here or each.url not in (None, own) for each in led)
