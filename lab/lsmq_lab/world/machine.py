"""A world in the place of the real one, for as long as a scope lasts."""

from __future__ import annotations

import asyncio
import concurrent.futures._base
import gc
import os
import shutil
import socket
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

from lsmq import runtime
from lsmq_coordinator import raft_transport
from lsmq_node import connections

from .files import Files
from .loop import WorldLoop, WorldPolicy
from .network import Network
from .scheduler import Scheduler, SimulatedProcess
from .sockets import Notifier, Poller, sockets_of
from .threads import runtime_of

#: Of all programs of a world.
_PID = 17


class World:
    """Time, threads, files and sockets that follow from a seed."""

    def __init__(self, seed: int, directory: Path, *, preemption: float = 0.05) -> None:
        self.seed = seed
        self.scheduler = Scheduler(seed, preemption=preemption)
        self.scheduler.private = str(directory)
        self.network = Network(self.scheduler)
        self.files = Files(self.scheduler, directory)
        self.random = self.scheduler.random.__class__(self.scheduler.random.getrandbits(64))

    @property
    def now(self) -> float:
        return self.scheduler.now

    def process(self, name: str, host: str, *, steady_s: float = 0.0, wrong_s: float = 0.0) -> SimulatedProcess:
        """A program that is started on a machine."""
        process = SimulatedProcess(self.scheduler, name, host, steady_s=steady_s)
        process.wrong_s = wrong_s
        self.network.dark.discard(host)
        return process

    def kill(self, process: SimulatedProcess) -> None:
        """End a process; what it wrote stays in the system's hands."""
        process.kill()
        self.network.killed(process)
        self.files.killed(process)

    def cut_power(self, process: SimulatedProcess) -> None:
        """End a process with its machine: unsynced writes are lost, or not."""
        process.kill()
        self.network.lost_power(process)
        self.network.dark.add(process.host)
        self.files.killed(process)
        self.files.disk(process.host).power_cut(self.random)

    def run(
        self, target: Callable[[], Any], *, limit_s: float = 3_600.0, process: SimulatedProcess | None = None
    ) -> Any:
        """What a function returns, called in a thread of the world."""
        return self.scheduler.finish(target, limit_s=limit_s, process=process)

    def run_async(
        self, make: Callable[[], Any], *, limit_s: float = 3_600.0, process: SimulatedProcess | None = None
    ) -> Any:
        """What a coroutine returns, run on an event loop of the world."""
        return self.run(lambda: self.loop_run(make), limit_s=limit_s, process=process)

    def loop_run(self, make: Callable[[], Any]) -> Any:
        """``asyncio.run``, in a thread of the world."""
        loop = WorldLoop(self.scheduler, self.network)
        try:
            return loop.run_until_complete(make())
        finally:
            loop.run_until_complete(_end_all())
            loop.run_until_complete(loop.shutdown_asyncgens())
            loop.run_until_complete(loop.shutdown_default_executor())
            loop.close()


async def _end_all() -> None:
    tasks = sorted(asyncio.all_tasks() - {asyncio.current_task()}, key=hash)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


@contextmanager
def world(seed: int, *, preemption: float = 0.05, directory: Path | None = None) -> Iterator[World]:
    """A world in the place of the real one."""
    gc.collect()  # what is left of others is not to end in this one: a node collects when it starts
    with ExitStack() as scope:
        if directory is None:
            memory = Path("/dev/shm")
            directory = Path(tempfile.mkdtemp(prefix="lsmq-world-", dir=memory if memory.is_dir() else None))
            scope.callback(shutil.rmtree, directory, True)
        made = World(seed, directory, preemption=preemption)
        names = runtime_of(made.scheduler)
        scope.callback(runtime.install, runtime.install(names))
        scope.enter_context(patch.object(os, "getpid", lambda: _PID))
        collecting = gc.isenabled()
        gc.disable()
        if collecting:
            scope.callback(gc.enable)
        scope.enter_context(made.files.installed())
        sockets = sockets_of(made.network)
        scope.enter_context(patch.object(socket, "socket", sockets))
        scope.enter_context(patch.object(connections, "AcceptedSocket", _accepted(sockets)))
        waits = SimpleNamespace(Condition=names["Condition"], Event=names["Event"], Lock=names["Lock"])
        scope.enter_context(patch.object(concurrent.futures._base, "threading", waits))
        scope.callback(asyncio.set_event_loop_policy, None)
        asyncio.set_event_loop_policy(WorldPolicy(made.scheduler, made.network))
        _install_raft(scope, made.network)
        yield made


def _accepted(base: type[Any]) -> type[Any]:
    """The daemon's own kind of socket, which was made of the real one."""

    class Connection(base):  # type: ignore[misc]
        on_close: Callable[[], None] | None = None

        def close(self) -> None:
            super().close()
            if self.on_close is not None:
                done, self.on_close = self.on_close, None
                done()

    return Connection


def _install_raft(scope: ExitStack, network: Network) -> None:
    scope.enter_context(patch.object(raft_transport, "createPoller", lambda kind: Poller(network)))
    scope.enter_context(patch.object(raft_transport, "PipeNotifier", Notifier))
