"""The daemon: one node in one process, from start to graceful stop.

``lsmq serve`` calls :func:`run`; ``python -m lsmq_node.api.serve`` does the same with fewer conveniences.
"""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import gc
import os
import resource
import signal
import socket
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import ExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Protocol

import structlog
from aiohttp import web

import lsmq
from lsmq import runtime
from lsmq.errors import AddressInUse, LsmqError
from lsmq_coordinator.tls import Certificates
from lsmq_node.config import InvalidConfig, NodeConfig
from lsmq_node.connections import ADMIN_CONNECTIONS, INTERNAL_CONNECTIONS, Doorkeeper, Limits
from lsmq_node.descriptors import shares
from lsmq_node.listening import listening_socket
from lsmq_node.metrics import DoorMetrics
from lsmq_node.node import Node, running_node
from lsmq_node.settings import chosen
from lsmq_node.storage.memory import use_one_arena
from lsmq_node.tls_settings import client_files

from . import logs
from .app import make_app
from .failures import AdminConnection, HttpConnection

_log = structlog.get_logger("lsmq.node")

KEEPALIVE_S = 75.0
_PORTS = (
    "processes listen 10, 20, ... ports above what is set for the first; those of a node of its own all follow --port"
)


class Beside(Protocol):
    """Who started this process beside others, as it knows him."""

    #: Of this process.
    name: str

    async def accompany(self, node: Node, stopping: asyncio.Event) -> None:
        """For as long as the node serves. Set ``stopping`` to have it stop."""


def run(config: NodeConfig, beside: Beside | None = None) -> int:
    """Serve until SIGTERM, SIGINT or SIGHUP (unless that is ignored, as under ``nohup``). Returns the exit code
    of the process.

    When the node can serve, one line ``lsmq node ready on URL (data DIR)`` goes to standard output; ``beside`` others
    that is left to who started them. When it cannot start, one line ``error: code: message`` goes to standard error
    and 1 is returned.

    What the process makes from here on is for its own user alone: it sets the umask 077.
    """
    os.umask(0o077)
    runtime.share_closely()
    use_one_arena()
    logs.configure(config.log_format, None if beside is None else beside.name)
    _raise_file_limit()
    code = 0
    try:
        config.check_exposure()
        asyncio.run(_serve(config, beside))
    except* LsmqError as group:
        for error in _leaves(group):
            where = "" if beside is None or not isinstance(error, AddressInUse) else f" ({beside.name}: {_PORTS})"
            print(f"error: {error.code}: {error.message}{where}", file=sys.stderr, flush=True)
        code = 1
    return code


def _raise_file_limit() -> None:
    """As many files and connections as the system lets us have: the usual 1024 are soon used up."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    except (OSError, ValueError) as error:
        _log.warning("file_limit_not_raised", soft=soft, hard=hard, reason=str(error))


async def _serve(config: NodeConfig, beside: Beside | None = None) -> None:
    """The root of everything: one task group that ends when the node is told to stop."""
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    ends = [signal.SIGTERM, signal.SIGINT]
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        ends.append(signal.SIGHUP)
    for number in ends:
        loop.add_signal_handler(number, stopping.set)
    async with serving(config) as node:
        # What is there by now stays: without this, each full collection looks through it, for tens of milliseconds.
        gc.collect()
        gc.freeze()
        if beside is None:
            announce(node.broker.config, config)
            await stopping.wait()
        else:
            await _accompanied(beside, node, stopping)
    _log.info("stopped")


@asynccontextmanager
async def serving(config: NodeConfig) -> AsyncIterator[Node]:
    """A node that serves clients in this block; at the end of the block it stops as by SIGTERM.

    Everything of the process is left as it is: signals, the umask, logging, limits. Raises ``LsmqError``, alone or in
    a group.
    """
    files = client_files(config)
    tls = None if files is None else Certificates(files)
    with ExitStack() as listening:
        listeners = [listening.enter_context(listening_socket(config.host, config.port, "--port"))]
        config = dataclasses.replace(config, port=listeners[0].getsockname()[1])
        if config.admin_port is not None:
            listeners.append(
                listening.enter_context(listening_socket(config.admin_host, config.admin_port, "admin_port"))
            )
            config = dataclasses.replace(config, admin_port=listeners[1].getsockname()[1])
        _log.info("starting", version=lsmq.__version__, pid=os.getpid(), **chosen(config) | {"data": config.data_text})
        if config.is_exposed:
            _log.warning(
                "insecure",
                host=config.exposed_host,
                why="whoever reaches this address may do everything (auth is none)",
            )
        async with running_node(config) as node, _listening_http(node, listeners, tls):
            yield node
            _log.info("stopping", waiters=node.broker.waiters.count)
            await node.retire()


async def _accompanied(beside: Beside, node: Node, stopping: asyncio.Event) -> None:
    async with asyncio.TaskGroup() as tasks:
        accompanying = tasks.create_task(beside.accompany(node, stopping))
        await stopping.wait()
        accompanying.cancel()


@asynccontextmanager
async def _listening_http(
    node: Node, listeners: Sequence[socket.socket], tls: Certificates | None
) -> AsyncIterator[None]:
    """HTTP is answered in this block; what is held at its end is answered first. ``listeners``: the port for clients,
    and that for administration where there is one, which has connections of its own, whatever clients take."""
    config = node.broker.config
    # Most of the time is for requests; the rest is for the last commit and closing the files.
    grace_s = 0.7 * config.shutdown_grace_ms / 1000
    runner = web.AppRunner(make_app(node), handler_cancellation=True, shutdown_timeout=grace_s)
    await runner.setup()
    assert runner.server is not None
    settings = {
        "loop": asyncio.get_running_loop(),
        "access_log": None,  # None is none, as in AppRunner.
        "auto_decompress": False,  # see .bodies, which knows a limit
        "keepalive_timeout": KEEPALIVE_S,
    }
    kinds = ((HttpConnection, client_limits(config)), (AdminConnection, Limits.of(ADMIN_CONNECTIONS, 50)))
    doors = [
        Doorkeeper(listener, partial(kind, runner.server, **settings), limits, tls)
        for listener, (kind, limits) in zip(listeners, kinds, strict=False)
    ]
    node.metrics.add(DoorMetrics(doors))
    node.metrics.add(logs.LogMetrics())
    async with asyncio.TaskGroup() as tasks:
        watching = None
        if tls is not None:
            part = node.broker.parts.part("certificate", essential=False)
            watching = tasks.create_task(tls.watch(part, lambda: _log.info("certificate_reloaded")))
        try:
            for door in doors:
                door.start()
            yield
        finally:
            if watching is not None:
                watching.cancel()
            for door in doors:
                door.close()
            await node.begin_stop()
            await runner.cleanup()


def client_limits(config: NodeConfig) -> Limits:
    """How many connections clients may have: as is configured, and no more than leaves others what they need."""
    connections = shares().connections
    inside = 0 if config.cluster is None else min(INTERNAL_CONNECTIONS, connections // 2)
    inside += 0 if config.admin_port is None else min(ADMIN_CONNECTIONS, connections // 8)
    return Limits.of(min(config.max_connections, connections - inside), config.share_percent, config.proxies)


def announce(config: NodeConfig, given: NodeConfig) -> None:
    """The ready line: scripts wait for it. Where nobody can be told, the node serves all the same.

    ``config`` is as it serves, ``given`` as it was started.
    """
    try:
        print(f"lsmq node ready on {url_of(config)} (data {given.data_text})", flush=True)
    except OSError as error:
        _log.warning("ready_line_lost", url=url_of(config), reason=str(error))


def url_of(config: NodeConfig) -> str:
    """Where the node serves clients, as it listens."""
    host = f"[{config.host}]" if ":" in config.host else config.host
    scheme = "http" if config.tls_cert is None else "https"
    return f"{scheme}://{host}:{config.port}"


def _leaves(group: BaseExceptionGroup[LsmqError]) -> list[LsmqError]:
    found: list[LsmqError] = []
    for error in group.exceptions:
        found.extend(_leaves(error) if isinstance(error, BaseExceptionGroup) else [error])
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """A thin command line: ``--data``, ``--config`` and ``--set NAME=VALUE`` for everything else."""
    parser = argparse.ArgumentParser(prog="lsmq_node", description="Run one LSMQ node.")
    parser.add_argument("--data", help="directory of the node's files; several with commas between")
    parser.add_argument("--host", help="address to listen on")
    parser.add_argument("--port", type=int, help="port to listen on, 0 for any")
    parser.add_argument("--config", type=Path, help="TOML file with settings")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="any other setting")
    options = parser.parse_args(arguments)
    overrides = dict(setting.partition("=")[::2] for setting in options.set)
    try:
        config = NodeConfig.load(
            options.config,
            os.environ,
            **{"data": options.data, "host": options.host, "port": options.port, **overrides},
        )
        if config.processes != 1:
            raise InvalidConfig("processes is not 1, and several are run by 'lsmq serve'", setting="processes")
    except LsmqError as error:
        print(f"error: {error.code}: {error.message}", file=sys.stderr)
        return 2
    return run(config)


if __name__ == "__main__":
    sys.exit(main())
