"""Proof of death: a real process, a real sentinel, and voters that hear of it."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path

import pytest
from aiohttp import web

from lsmq_coordinator import death
from lsmq_coordinator.auth import ClusterSecret
from lsmq_coordinator.death import DeathNotice
from lsmq_coordinator.errors import NotAuthenticated
from lsmq_coordinator.parts import Parts
from support.raft_group import until
from support.waiting import PATIENCE_S

SECRET = ClusterSecret(b"a secret of sufficient length")
OTHER = ClusterSecret(b"another secret, long enough")
BOTH = ClusterSecret(SECRET.value, OTHER.value)
SWAPPED = ClusterSecret(OTHER.value, SECRET.value)
NOTICE = DeathNotice("n1", "a life")

_NODE = """
import asyncio, os, signal, sys
from lsmq_coordinator.auth import ClusterSecret
from lsmq_coordinator.death import DeathNotice, Sentinel
from lsmq_coordinator.parts import Parts

class Seen:
    def running(self): print("running", sentinel.pid, flush=True)
    def retrying(self, why): print("retrying", why, flush=True)
    def stopped(self, why): pass
    def gone(self): pass

async def main():
    aim = lambda: sentinel.aim({**voters, "n3": sys.argv[-1]})
    asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, aim)
    await sentinel.run()

voters = {"n1": "http://127.0.0.1:1", "n2": sys.argv[1]}
sentinel = Sentinel(DeathNotice("n1", "a life"), ClusterSecret(b"a secret of sufficient length"), voters,
                  patience_s=20.0, part=Seen())
asyncio.run(main())
"""


class Voter:
    """Takes notices as a voter does."""

    def __init__(self) -> None:
        self.notices: list[DeathNotice] = []
        self.url = ""

    async def died(self, request: web.Request) -> web.Response:
        header = request.headers.get(death.HEADER)
        self.notices.append(DeathNotice.verified(await request.read(), header, SECRET))
        return web.Response()


@asynccontextmanager
async def voter() -> AsyncIterator[Voter]:
    found, application = Voter(), web.Application()
    application.add_routes([web.post(death.PATH, found.died)])
    runner = web.AppRunner(application, shutdown_timeout=0.1)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        host, port = runner.addresses[0][:2]
        found.url = f"http://{host}:{port}"
        yield found
    finally:
        await runner.cleanup()


@contextmanager
def node(*urls: str) -> Iterator[subprocess.Popen[str]]:
    """``urls`` of a voter, and of one that is told too after a SIGUSR1."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", _NODE, *urls]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.send_signal(signal.SIGCONT)
            process.kill()


async def line(process: subprocess.Popen[str]) -> list[str]:
    assert process.stdout is not None
    return (await asyncio.to_thread(process.stdout.readline)).split()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGSEGV], ids=lambda number: number.name)
def test_the_voters_hear_of_a_process_that_ends_however_it_ends(number: signal.Signals) -> None:
    async def main() -> None:
        async with voter() as found:
            with node(found.url) as process:
                assert (await line(process))[0] == "running"
                process.send_signal(number)
                await until(lambda: found.notices)
                assert found.notices == [NOTICE]

    asyncio.run(main())


def test_a_process_that_is_stopped_or_whose_sentinel_dies_is_not_dead() -> None:
    async def main() -> None:
        async with voter() as found:
            with node(found.url) as process:
                _, sentinel = await line(process)
                process.send_signal(signal.SIGSTOP)
                for harmless in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
                    os.kill(int(sentinel), harmless)
                process.send_signal(signal.SIGCONT)
                os.kill(int(sentinel), signal.SIGKILL)
                assert (await line(process))[0] == "retrying"
                said, another = await line(process)
                assert said == "running" and another != sentinel
                assert found.notices == []
                process.kill()
                await until(lambda: found.notices)
                assert found.notices == [NOTICE]

    asyncio.run(main())


def test_who_votes_later_hears_of_it_too() -> None:
    async def main() -> None:
        async with voter() as former, voter() as later:
            with node(former.url, later.url) as process:
                said, sentinel = await line(process)
                process.send_signal(signal.SIGUSR1)
                again, another = await line(process)
                assert (said, again) == ("running", "running") and another != sentinel, "nothing failed"
                process.kill()
                await until(lambda: former.notices and later.notices)
                assert former.notices == later.notices == [NOTICE]

    asyncio.run(main())


def test_a_sentinel_ends_when_its_time_is_over_though_nobody_listens() -> None:
    async def main() -> None:
        reading, writing = os.pipe()
        order = {"pid": 1, "targets": [["127.0.0.1", 1]], "request": "x", "patience_s": 0.1, "tls": []}
        os.write(writing, json.dumps(order).encode() + b"\n")
        os.close(writing)
        # It is not the child of process 1, so its node has ended before it looked.
        command = [sys.executable, "-I", "-S", str(Path(death.sentinel.__file__))]
        ended = await asyncio.to_thread(subprocess.run, command, stdin=reading, timeout=PATIENCE_S, check=False)
        os.close(reading)
        assert ended.returncode == 0

    asyncio.run(main())


def test_where_the_system_has_no_pidfds_there_is_no_sentinel_and_the_part_says_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An old kernel, or a container whose filter of system calls does not know it."""

    def forbidden(pid: int) -> int:
        raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))

    monkeypatch.setattr(os, "pidfd_open", forbidden)

    async def main() -> None:
        parts = Parts()
        part = parts.part("sentinel", essential=False)
        sentinel = death.Sentinel(NOTICE, SECRET, {"n2": "http://127.0.0.1:1"}, patience_s=1.0, part=part)
        task = asyncio.create_task(sentinel.run())
        await until(lambda: any("pidfd_open" in problem for problem in parts.problems(essential=False)))
        assert sentinel.pid is None and not task.done()
        task.cancel()

    asyncio.run(main())


@pytest.mark.parametrize("fails", ["watched", "reaped"])
def test_a_sentinel_that_cannot_be_watched_is_replaced_and_ends_nothing(
    monkeypatch: pytest.MonkeyPatch, fails: str
) -> None:
    """No descriptor is left for it, or its end was taken note of by somebody else, as where SIGCHLD is ignored."""
    opened, failures = os.pidfd_open, {own: iter([errno.EMFILE]) for own in (True, False)}

    def wanting(pid: int) -> int:
        if (number := next(failures[pid == os.getpid()], None)) is not None:
            raise OSError(number, os.strerror(number))
        return opened(pid)

    async def main() -> None:
        parts = Parts()
        part = parts.part("sentinel", essential=False)
        sentinel = death.Sentinel(NOTICE, SECRET, {"n2": "http://127.0.0.1:1"}, patience_s=1.0, part=part)
        if fails == "watched":
            monkeypatch.setattr(os, "pidfd_open", wanting)
        task = asyncio.create_task(sentinel.run())
        await until(lambda: task.done() or sentinel.pid is not None)
        first = sentinel.pid
        if fails == "reaped":
            _end(first)
            await until(lambda: task.done() or sentinel.pid not in (None, first))
        assert not task.done()
        await until(lambda: not parts.problems(essential=False))
        assert next(report.failures for report in parts.reports()) == 1
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        for pid in {first, sentinel.pid} - {None}:
            _end(pid)

    asyncio.run(main())


def _end(pid: int | None) -> None:
    assert pid is not None
    with suppress(ProcessLookupError, ChildProcessError):
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


@pytest.mark.parametrize(
    ("content", "signature"),
    [
        (NOTICE.to_bytes(), None),
        (NOTICE.to_bytes(), "0" * 64),
        (DeathNotice("n2", "a life").to_bytes(), NOTICE.signature(SECRET)),
        (DeathNotice("n1", "another life").to_bytes(), NOTICE.signature(SECRET)),
        (b"[]", NOTICE.signature(SECRET)),
        (b"\xff{", NOTICE.signature(SECRET)),
        (NOTICE.to_bytes(), NOTICE.signature(OTHER)),
    ],
)
def test_a_notice_that_proves_nothing_is_refused(content: bytes, signature: str | None) -> None:
    with pytest.raises(NotAuthenticated):
        DeathNotice.verified(content, signature, SECRET)
    assert DeathNotice.verified(NOTICE.to_bytes(), NOTICE.signature(SECRET), SECRET) == NOTICE


@pytest.mark.parametrize(
    ("dying", "voting"),
    [(SECRET, BOTH), (BOTH, SECRET), (BOTH, SWAPPED), (SWAPPED, BOTH), (SWAPPED, OTHER), (OTHER, SWAPPED)],
)
def test_while_the_secret_changes_notices_are_understood(dying: ClusterSecret, voting: ClusterSecret) -> None:
    assert DeathNotice.verified(NOTICE.to_bytes(), NOTICE.signature(dying), voting) == NOTICE


@pytest.mark.parametrize(("dying", "voting"), [(BOTH, OTHER), (SWAPPED, SECRET)])
def test_a_notice_under_a_secret_that_was_removed_is_refused(dying: ClusterSecret, voting: ClusterSecret) -> None:
    with pytest.raises(NotAuthenticated):
        DeathNotice.verified(NOTICE.to_bytes(), NOTICE.signature(dying), voting)
