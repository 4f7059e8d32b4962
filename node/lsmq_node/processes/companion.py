"""What a process and its supervisor tell each other, over a socket: a line of JSON each.

::

    to the supervisor   {"is": "up"}        it listens
                        {"is": "serving"}   it is ready, and all shards are led that are not on its lost disks
                        {"is": "alive"}     each second from then on that it listens: its event loop runs
    from it             {"processes": [{"name": "p0", "url": "http://..", "pid": 17, "problem": null}]}
                                            all of them, at each change

Its end is the supervisor's, and so the process's.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
from typing import Any

import structlog

from lsmq.errors import LsmqError
from lsmq_coordinator.parts import Part
from lsmq_node.node import FellowProcess, Node

MAX_LINE_BYTES = 64 * 1024
_LOOK_S = 0.05
_ALIVE_S = 1.0

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
            telling = [tasks.create_task(tell) for tell in (self._tell_serving(node, writer), self._tell_alive(writer))]
            try:
                while (line := await reader.readline()).endswith(b"\n"):
                    self._heard(node, json.loads(line))
                _log.error("supervisor_gone", why="this process ends with it")
            except ConnectionError as error:
                _log.error("supervisor_gone", why=str(error))
            finally:
                for task in telling:
                    task.cancel()
                writer.close()
        stopping.set()

    def _heard(self, node: Node, told: dict[str, list[dict[str, Any]]]) -> None:
        node.processes = tuple(FellowProcess(**process) for process in told["processes"])
        for process in node.processes:
            if process.name == self.name:
                continue
            if process.name not in self._parts:
                self._parts[process.name] = node.broker.parts.part(f"process {process.name}", essential=False)
            part = self._parts[process.name]
            if process.problem is None:
                part.running()
            else:
                part.retrying(process.problem)

    async def _tell_serving(self, node: Node, writer: asyncio.StreamWriter) -> None:
        while True:
            if _serves(node):
                break
            await asyncio.sleep(_LOOK_S)
        self._say(writer, "serving")

    async def _tell_alive(self, writer: asyncio.StreamWriter) -> None:
        while True:
            await asyncio.sleep(_ALIVE_S)
            self._say(writer, "alive")
            with contextlib.suppress(ConnectionError):  # Who reads sees the end.
                await writer.drain()  # A supervisor that is held up is not written to without end.

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
