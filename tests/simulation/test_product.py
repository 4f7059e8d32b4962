"""Parts of the product in a world: as they are, with all their threads."""

from __future__ import annotations

import asyncio
import gc
import signal
import tracemalloc
from collections.abc import Iterable
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest

from lsmq import Client, Consumer, Producer, runtime
from lsmq.errors import ClientClosed
from lsmq_lab.world.machine import world
from lsmq_node.api import serve
from lsmq_node.config import NodeConfig
from lsmq_node.storage import QueueStore

SMALL = {"segment_bytes": 64 << 10, "memtable_bytes": 64 << 10, "max_message_bytes": 16 << 10}


def _stored(path: Path, queues: Iterable[str]) -> dict[str, list[bytes]]:
    """What queues hold, in a store that is opened for that."""
    with QueueStore(path) as store:
        return {queue: store.get(queue, 0, 10_000) for queue in queues}


@pytest.mark.parametrize("seed", range(4))
def test_a_queue_store_under_many_threads_keeps_what_it_acknowledged(seed: int) -> None:
    with world(seed, preemption=0.2) as made:
        disk = made.files.disk("a")

        def program() -> tuple[dict[str, list[bytes]], dict[str, list[bytes]]]:
            store = QueueStore(disk.root / "store", **SMALL)
            put: dict[str, list[bytes]] = {f"q{number}": [] for number in range(4)}

            def work(queue: str) -> None:
                for number in range(100):
                    body = f"{queue} {number} ".encode() * 20
                    assert store.put(queue, body) == number
                    put[queue].append(body)

            threads = [runtime.Thread(target=work, args=(queue,)) for queue in put]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            store.close()
            return put, _stored(disk.root / "store", put)

        put, got = made.run(program)
        assert put == got
        assert made.scheduler.crashes == []


@pytest.mark.parametrize("seed", range(24))
def test_everybody_who_waits_for_a_queue_store_is_answered(seed: int) -> None:
    """The main thread hands over, others do it themselves where nobody else does. In half of all seeds the main thread
    puts too, there are flushes, and one of them closes; in the others nothing else ever wakes the owner."""
    busy = seed % 2 == 0
    with world(seed, preemption=0.3) as made:
        disk = made.files.disk("a")
        ends: list[str] = []

        def program() -> tuple[dict[str, list[bytes]], dict[str, list[bytes]]]:
            store = QueueStore(disk.root / "store", **SMALL if busy else {})
            put: dict[str, list[bytes]] = {f"q{number}": [] for number in range(5)}

            def work(queue: str) -> None:
                for number in range(60):
                    pairs = [(queue, b"%d" % number * 300)] * 2
                    try:
                        store.put_many(pairs)
                    except ClientClosed:
                        break
                    put[queue] += [body for _, body in pairs]
                    if busy and number % 20 == 19:
                        with suppress(ClientClosed):
                            store.flush()
                ends.append(queue)

            def end() -> None:
                runtime.sleep(seed / 40)
                store.close()

            works = [partial(work, queue) for queue in put]
            threads = [runtime.Thread(target=each) for each in (*works[1:], end if busy else works[0])]
            for thread in threads:
                thread.start()
            if busy:
                works[0]()
            for thread in threads:
                thread.join()
            store.close()
            return put, _stored(disk.root / "store", put)

        put, got = made.run(program, limit_s=20)  # later on a flush by age would wake the owner
        assert sorted(ends) == sorted(put)
        assert got == put
        assert made.scheduler.crashes == []


@pytest.mark.part(3)
@pytest.mark.parametrize("seed", range(12))
def test_a_queue_store_keeps_what_it_acknowledged_through_a_power_cut(seed: int) -> None:
    with world(seed, preemption=0.2) as made:
        disk = made.files.disk("a")
        put: dict[str, list[bytes]] = {f"q{number}": [] for number in range(4)}

        def write() -> None:
            store = QueueStore(disk.root / "store", **SMALL)

            def work(queue: str) -> None:
                for number in range(1_000):
                    body = f"{queue} {number} ".encode() * 40
                    store.put(queue, body)
                    put[queue].append(body)

            for queue in put:
                runtime.Thread(target=work, args=(queue,)).start()
            runtime.sleep(3_600)

        process = made.process("writer", "a")
        made.scheduler.spawn(write, "main", process)
        end_s = 0.05 + seed / 20
        made.scheduler.run(lambda: made.now > end_s)
        made.cut_power(process)

        got = made.run(lambda: _stored(disk.root / "store", put), process=made.process("reader", "a"))
        assert any(put.values())
        for queue, bodies in put.items():
            assert got[queue][: len(bodies)] == bodies
            assert len(got[queue]) <= len(bodies) + 1


def _used(seed: int) -> tuple[int, str]:
    with world(seed, preemption=0.1) as made:
        node = made.process("node", "10.0.0.1")
        data = made.files.disk("10.0.0.1").root / "data"
        loops: list[asyncio.AbstractEventLoop] = []

        async def run_node() -> None:
            loops.append(asyncio.get_running_loop())
            await serve._serve(NodeConfig.load(data=data, host="10.0.0.1", port=7600))

        made.scheduler.spawn(lambda: made.loop_run(run_node), "main", node)

        async def use() -> int:
            async with Client("http://10.0.0.1:7600") as client:
                await client.create_topic("orders", queues=8)
                async with Producer(client, "orders") as producer:
                    for number in range(50):
                        await producer.send_and_wait(f"m{number}", key=f"k{number}")
                count = 0
                async with Consumer(client, "orders", group="g") as consumer:
                    while count < 50:
                        count += len(await consumer.poll())
                    await consumer.commit()
                return count

        count = made.run_async(use, process=made.process("client", "10.0.0.2"))
        loops[0].signal(signal.SIGTERM)  # type: ignore[attr-defined]
        made.scheduler.run(lambda: node.threads[0].done, limit_s=60)
        assert made.scheduler.crashes == []
        return count, made.scheduler.fingerprint


def test_a_node_and_its_client_over_http_and_again_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    count, fingerprint = _used(5)
    assert count == 50
    assert _used(5) == (50, fingerprint)
    assert _used(6)[1] != fingerprint


@pytest.mark.part(3)
def test_a_node_that_idles_takes_no_more_memory(capsys: pytest.CaptureFixture[str]) -> None:
    """Whatever it does by itself, a thousand times over, leaves nothing."""
    with world(3) as made:
        data: Path = made.files.disk("10.0.0.1").root / "data"

        async def run_node() -> None:
            await serve._serve(NodeConfig.load(data=data, host="10.0.0.1", port=7600))

        made.scheduler.spawn(lambda: made.loop_run(run_node), "main", made.process("node", "10.0.0.1"))

        async def use() -> None:
            async with Client("http://10.0.0.1:7600") as client:
                await client.create_topic("orders", queues=8)
                async with Producer(client, "orders") as producer, Consumer(client, "orders", group="g") as consumer:
                    await producer.send_and_wait("m")
                    assert [message.body for message in await consumer.poll()] == [b"m"]
                    await consumer.commit()

        made.run_async(use, process=made.process("client", "10.0.0.2"))

        def idle(seconds: float) -> int:
            made.run_async(lambda: asyncio.sleep(seconds), process=made.process("waiting", "10.0.0.3"))
            gc.collect()
            return tracemalloc.get_traced_memory()[0]

        idle(600.0)
        tracemalloc.start()
        try:
            before = idle(300.0)
            grown = idle(600.0) - before
        finally:
            tracemalloc.stop()
    assert grown < 32 << 10, f"{grown} bytes in ten minutes: one object a second would be more"


def test_a_blocking_client_in_a_world(capsys: pytest.CaptureFixture[str]) -> None:
    from lsmq import sync

    with world(3) as made:
        data: Path = made.files.disk("10.0.0.1").root / "data"

        async def run_node() -> None:
            await serve._serve(NodeConfig.load(data=data, host="10.0.0.1", port=7600))

        made.scheduler.spawn(lambda: made.loop_run(run_node), "main", made.process("node", "10.0.0.1"))

        def use() -> list[str]:
            with sync.Client("http://10.0.0.1:7600") as client:
                client.create_topic("orders", queues=1)
                with sync.Producer(client, "orders") as producer:
                    producer.send_and_wait("one")
                with sync.Consumer(client, "orders") as consumer:
                    return [message.text() for message in consumer.poll(timeout_ms=10_000)]

        assert made.run(use, process=made.process("client", "10.0.0.2"), limit_s=120) == ["one"]
