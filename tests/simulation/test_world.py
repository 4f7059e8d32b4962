"""A world under a seed: time, threads, sockets and files that follow from it."""

from __future__ import annotations

import asyncio
import errno
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from lsmq import runtime
from lsmq_lab.world.disk import UNLIMITED_BYTES
from lsmq_lab.world.machine import World, world
from lsmq_lab.world.scheduler import Deadlock


@pytest.fixture(params=range(3))
def made(request: pytest.FixtureRequest) -> Iterator[World]:
    with world(request.param, preemption=0.3) as made:
        yield made


def test_virtual_hours_pass_at_once(made: World) -> None:
    def program() -> tuple[float, float]:
        began_s, wall_s = runtime.monotonic(), runtime.wall_time()
        runtime.sleep(3_600)
        return runtime.monotonic() - began_s, runtime.wall_time() - wall_s

    began_s = time.process_time()
    steady_s, wall_s = made.run(program, limit_s=4_000)
    assert steady_s == pytest.approx(3_600)
    assert wall_s == pytest.approx(3_600)
    assert time.process_time() - began_s < 60


def test_without_the_lock_updates_are_lost_and_with_it_none() -> None:
    def count(locked: bool) -> int:
        lock, total = runtime.Lock(), [0]

        def work() -> None:
            for _ in range(50):
                if locked:
                    lock.acquire()
                before = total[0]
                runtime.sleep(0)
                total[0] = before + 1
                if locked:
                    lock.release()

        threads = [runtime.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return total[0]

    with world(1, preemption=0.3) as made:
        assert made.run(lambda: count(locked=True)) == 200
        assert made.run(lambda: count(locked=False)) < 200


def test_waits_end_when_told_or_when_their_time_is_over(made: World) -> None:
    def program() -> list[object]:
        told: list[object] = []
        event, changed, queue = runtime.Event(), runtime.Condition(), runtime.SimpleQueue()
        told.append(event.wait(1.0))
        with changed:
            told.append(changed.wait(2.0))
        try:
            queue.get(timeout=3.0)
        except runtime.Empty:
            told.append("empty")
        told.append(round(runtime.monotonic()))

        def tell() -> None:
            event.set()
            queue.put("item")
            with changed:
                changed.notify()

        with changed:
            runtime.Thread(target=tell).start()
            told.append(changed.wait(100.0))
        return [*told, event.wait(100.0), queue.get(timeout=100.0), round(runtime.monotonic())]

    assert made.run(program) == [False, False, "empty", 6, True, True, "item", 6]


def test_who_waits_for_ever_is_named(made: World) -> None:
    with pytest.raises(Deadlock, match="stuck"):
        made.run(lambda: runtime.Thread(target=runtime.Event().wait, name="stuck").start() or runtime.Event().wait())


def test_an_executor_runs_work_in_threads(made: World) -> None:
    async def program() -> list[int]:
        loop = asyncio.get_running_loop()
        with runtime.ThreadPoolExecutor(2) as threads:

            def square(number: int) -> int:
                runtime.sleep(1.0)
                return number * number

            found = await asyncio.gather(*(loop.run_in_executor(threads, square, number) for number in range(4)))
        assert 2.0 <= loop.time() < 2.1
        return found

    assert made.run_async(program) == [0, 1, 4, 9]


async def _echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while piece := await reader.read(1000):
        writer.write(piece)
    writer.close()


def test_bytes_arrive_whole_in_order_and_late(made: World) -> None:
    content = bytes(range(256)) * 4_000

    async def program() -> bytes:
        server = await asyncio.start_server(_echo, "10.0.0.1", 80)
        reader, writer = await asyncio.open_connection("10.0.0.1", 80)
        writer.write(content)
        writer.write_eof()
        found = await reader.read()
        writer.close()
        server.close()
        return found

    assert made.run_async(program, process=made.process("one", "10.0.0.1")) == content
    assert made.now > 0.001


def test_nobody_there_is_a_refused_connection(made: World) -> None:
    async def program() -> None:
        await asyncio.open_connection("10.0.0.7", 80)

    with pytest.raises(ConnectionRefusedError):
        made.run_async(program)


def test_a_cut_holds_back_what_is_sent_until_it_is_mended(made: World) -> None:
    async def serve() -> None:
        await asyncio.start_server(_echo, "10.0.0.1", 80)
        await asyncio.Event().wait()

    made.scheduler.spawn(lambda: made.loop_run(serve), "main", made.process("server", "10.0.0.1"))

    async def program() -> float:
        await asyncio.sleep(0.1)
        reader, writer = await asyncio.open_connection("10.0.0.1", 80)
        made.network.cut("10.0.0.1", "10.0.0.2")  # Only the answer.
        made.scheduler.call_later(5.0, lambda: made.network.mend("10.0.0.1", "10.0.0.2"))
        writer.write(b"hello")
        assert await reader.read(5) == b"hello"
        writer.close()
        return made.now

    assert made.run_async(program, process=made.process("client", "10.0.0.2")) > 5.0


def test_bytes_stay_in_order_over_cuts_that_come_and_go(made: World) -> None:
    content = bytes(range(250)) * 40

    async def server() -> bytes:
        async def client() -> None:
            _, writer = await asyncio.open_connection("10.0.0.2", 7000)
            for at in range(0, len(content), 50):
                writer.write(content[at : at + 50])
                await asyncio.sleep(1e-4)
            writer.close()

        whole = asyncio.get_running_loop().create_future()

        async def take(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            whole.set_result(await reader.read(-1))
            writer.close()

        async with await asyncio.start_server(take, "10.0.0.2", 7000):
            sender = made.process("client", "10.0.0.1")
            made.scheduler.spawn(lambda: made.loop_run(client), "main", sender)
            return await whole

    for number in range(100):
        at = made.scheduler.now + number * 3e-4
        made.scheduler.call_at(at, lambda: made.network.cut("10.0.0.1", "10.0.0.2"))
        made.scheduler.call_at(at + 1e-4, lambda: made.network.mend("10.0.0.1", "10.0.0.2"))
    assert made.run_async(server, process=made.process("server", "10.0.0.2")) == content


def test_a_killed_process_resets_its_connections_and_never_runs_again(made: World) -> None:
    server = made.process("server", "10.0.0.1")
    ticks: list[float] = []

    async def serve() -> None:
        await asyncio.start_server(_echo, "10.0.0.1", 80)
        while True:
            ticks.append(made.now)
            await asyncio.sleep(0.1)

    made.scheduler.spawn(lambda: made.loop_run(serve), "main", server)

    async def program() -> None:
        await asyncio.sleep(0.5)
        reader, writer = await asyncio.open_connection("10.0.0.1", 80)
        writer.write(b"hello")
        assert await reader.read(5) == b"hello"
        made.scheduler.call_later(1.0, lambda: made.kill(server))
        await reader.read(5)

    with pytest.raises(ConnectionResetError):
        made.run_async(program, process=made.process("client", "10.0.0.2"))
    assert max(ticks) < 1.6


def test_a_paused_process_stands_still(made: World) -> None:
    process, ticks = made.process("one", "10.0.0.1"), []

    def tick() -> None:
        for _ in range(100):
            ticks.append(made.now)
            runtime.sleep(0.1)

    made.scheduler.spawn(tick, "main", process)
    made.scheduler.call_at(2.0, process.pause)
    made.scheduler.call_at(50.0, process.resume)
    made.run(lambda: runtime.sleep(60.0))
    assert not [moment for moment in ticks if 2.01 < moment < 50.0]
    assert len(ticks) == 100


def _write(path: Path, content: bytes, *, sync: bool, sync_name: bool) -> None:
    fd = os.open(path, os.O_RDWR | os.O_CREAT)
    os.pwrite(fd, content, 0)
    if sync:
        os.fsync(fd)
    os.close(fd)
    if sync_name:
        directory = os.open(path.parent, os.O_RDONLY)
        os.fsync(directory)
        os.close(directory)


def test_a_power_cut_leaves_what_was_synced_and_perhaps_more() -> None:
    seen: dict[str, set[bytes | None]] = {"safe": set(), "nameless": set(), "torn": set()}
    for seed in range(40):
        with world(seed) as made:
            disk = made.files.disk("10.0.0.1")
            process = made.process("one", "10.0.0.1")

            def program(disk: Path = disk.root) -> None:
                _write(disk / "safe", b"a" * 6_000, sync=True, sync_name=False)
                _write(disk / "torn", b"b" * 6_000, sync=False, sync_name=True)
                _write(disk / "nameless", b"c" * 6_000, sync=True, sync_name=False)

            made.run(program, process=process)
            made.cut_power(process)
            for name, found in seen.items():
                path = disk.root / name
                found.add(path.read_bytes() if path.exists() else None)
    assert seen["safe"] == {b"a" * 6_000}
    assert seen["nameless"] == {None, b"c" * 6_000}
    assert {b"", b"b" * 6_000} < seen["torn"]


def test_a_rename_is_one_change(made: World) -> None:
    disk, process = made.files.disk("10.0.0.1"), made.process("one", "10.0.0.1")

    def program() -> None:
        _write(disk.root / "former", b"old", sync=True, sync_name=True)
        _write(disk.root / "next", b"new", sync=True, sync_name=False)
        (disk.root / "next").rename(disk.root / "former")

    made.run(program, process=process)
    made.cut_power(process)
    assert (disk.root / "former").read_bytes() in (b"old", b"new")


def test_a_full_disk_refuses_what_grows_and_a_failing_one_a_sync(made: World) -> None:
    disk = made.files.disk("10.0.0.1")

    def program() -> list[int | None]:
        errors: list[int | None] = []
        _write(disk.root / "file", b"x" * 100, sync=True, sync_name=True)
        fd = os.open(disk.root / "file", os.O_RDWR)
        disk.capacity_bytes = 0
        os.pwrite(fd, b"y" * 100, 0)
        for attempt in (lambda: os.pwrite(fd, b"z", 100), (disk.root / "more").mkdir):
            try:
                attempt()
            except OSError as error:
                errors.append(error.errno)
        disk.capacity_bytes = UNLIMITED_BYTES
        disk.at(1, errno.EIO, ("sync",))
        try:
            os.fsync(fd)
        except OSError as error:
            errors.append(error.errno)
        os.fsync(fd)
        return errors

    assert made.run(program) == [28, 28, 5]
