"""The process of the network between nodes: see :mod:`.network`."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from lsmq_lab.local_cluster import ClusterPlan, LocalCluster
from lsmq_lab.local_cluster.plan import HOST

from .connections import holder
from .network import DONE

_CHUNK_BYTES = 256 * 1024

Pids = Callable[[], Mapping[str, int | None]]


class Proxies:
    """The proxies of all nodes, in one event loop."""

    def __init__(self, plan: ClusterPlan, pids: Pids) -> None:
        """``pids`` gives the process of each node that runs."""
        self._plan = plan
        self._pids = pids
        self._cut: frozenset[tuple[str, str]] = frozenset()
        self._deaf: frozenset[str] = frozenset()
        self._rejecting: frozenset[str] = frozenset()
        self._carried: dict[asyncio.Task[None], str] = {}
        self._changed = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self._servers: list[asyncio.Server] = []

    def isolate(self, group: Iterable[str]) -> None:
        inside = set(group)
        outside = {node.id for node in self._plan.nodes} - inside
        cut = {(a, b) for a in inside for b in outside}
        self._set(cut=frozenset(cut | {(b, a) for a, b in cut}))

    def deafen(self, nodes: Iterable[str]) -> None:
        self._set(deaf=frozenset(nodes))

    def reject(self, nodes: Iterable[str]) -> None:
        self._set(rejecting=frozenset(nodes))
        for task, target in self._carried.items():
            if target in self._rejecting:
                task.cancel()

    def heal(self) -> None:
        self._set()

    def _set(
        self,
        *,
        cut: frozenset[tuple[str, str]] = frozenset(),
        deaf: frozenset[str] = frozenset(),
        rejecting: frozenset[str] = frozenset(),
    ) -> None:
        self._cut, self._deaf, self._rejecting = cut, deaf, rejecting
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    async def start(self) -> None:
        """Listen. Raises ``OSError``."""
        for node in self._plan.nodes:
            for outer, inner in (
                (node.internal_proxy_port, node.internal_port),
                (node.raft_proxy_port, node.raft_port),
            ):
                if outer is not None:
                    self._servers.append(await self._serve(node.id, outer, inner))

    async def _serve(self, node: str, outer: int, inner: int) -> asyncio.Server:
        def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = asyncio.get_running_loop().create_task(self._carry(node, outer, inner, reader, writer))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
            self._carried[task] = node
            task.add_done_callback(lambda task: self._carried.pop(task, None))

        return await asyncio.start_server(connected, HOST, outer, limit=_CHUNK_BYTES)

    async def close(self) -> None:
        for server in self._servers:
            server.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _carry(
        self, target: str, outer: int, inner: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        """One connection, from its beginning to its end."""
        port = writer.get_extra_info("peername")[1]
        source = self._who_dialled(port, outer)
        upstream: asyncio.StreamWriter | None = None
        try:
            if source is None or target in self._rejecting:
                return
            if self._is_silent(source, target, target):
                await self._passable(source, target, target)
                if self._who_dialled(port, outer) != source:
                    return  # It gave up.
            answers, upstream = await asyncio.open_connection(HOST, inner, limit=_CHUNK_BYTES)
            async with asyncio.TaskGroup() as both:
                both.create_task(self._pump(source, target, target, reader, upstream))
                both.create_task(self._pump(target, source, target, answers, writer))
        except* OSError:
            pass
        finally:
            if target in self._rejecting:
                _reset_at_its_end(writer)
            for side in (writer, upstream):
                if side is not None:
                    side.transport.abort()

    async def _pump(
        self, sender: str, receiver: str, dialled: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        """One direction of a connection that was dialled to ``dialled``."""
        while True:
            await self._passable(sender, receiver, dialled)
            chunk = await reader.read(_CHUNK_BYTES)
            await self._passable(sender, receiver, dialled)
            if not chunk:
                with contextlib.suppress(OSError, NotImplementedError):
                    writer.write_eof()
                return
            writer.write(chunk)
            await writer.drain()

    def _is_silent(self, sender: str, receiver: str, dialled: str) -> bool:
        return (sender, receiver) in self._cut or dialled in self._deaf

    async def _passable(self, sender: str, receiver: str, dialled: str) -> None:
        while self._is_silent(sender, receiver, dialled):
            await self._changed.wait()

    def _who_dialled(self, source_port: int, proxy_port: int) -> str | None:
        """The node whose process holds the other end of a connection; None when nobody (any more) does."""
        nodes = {pid: node for node, pid in self._pids().items() if pid is not None}
        pid = holder(HOST, source_port, proxy_port, nodes)
        return None if pid is None else nodes[pid]


def _reset_at_its_end(side: asyncio.StreamWriter) -> None:
    """Have a connection end with RST, as a firewall ends it that rejects."""
    with contextlib.suppress(OSError):
        side.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


async def _main(directory: Path) -> None:
    """Serve until standard input ends."""
    cluster = LocalCluster(directory)
    proxies = Proxies(cluster.plan, lambda: {node.id: cluster.process(node.id).pid for node in cluster.plan.nodes})
    await proxies.start()
    print(DONE, flush=True)
    lines = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), sys.stdin)
    while line := (await lines.readline()).decode().split():
        match line:
            case ["cut", *nodes]:
                proxies.isolate(nodes)
            case ["deafen", *nodes]:
                proxies.deafen(nodes)
            case ["reject", *nodes]:
                proxies.reject(nodes)
            case _:
                proxies.heal()
        print(DONE, flush=True)
    await proxies.close()


if __name__ == "__main__":
    asyncio.run(_main(Path(sys.argv[1])))
