"""A member of a consumer group in a process of its own, for tests that kill it.

Handles messages with :meth:`lsmq.Consumer.run` and says on standard output what happens, a line of JSON each: the
queues it is assigned and gives up, the begin and the end of each handler.
"""

from __future__ import annotations

import asyncio
import json
import queue
import signal
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from lsmq import Client, Consumer, Message
from support.dying import die_when
from support.python_process import PythonProcess
from support.waiting import PATIENCE_S, comes_true


class MemberProcess:
    """Starts at once; ``events`` grows as it tells."""

    def __init__(self, url: str, topic: str, group: str, **options: Any) -> None:
        self.events: list[dict[str, Any]] = []
        self._news: queue.Queue[None] = queue.Queue()
        given = json.dumps({"url": url, "topic": topic, "group": group, **options})
        self._process = PythonProcess([__file__, given], stderr=None, text=True)
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self.events.append(json.loads(line))
            self._news.put(None)

    def of(self, what: str) -> list[dict[str, Any]]:
        return [event for event in list(self.events) if event["what"] == what]

    @property
    def owned(self) -> set[int]:
        """The queues it has been assigned and has not given up."""
        owned: set[int] = set()
        for event in list(self.events):
            if event["what"] == "assigned":
                owned |= set(event["queues"])
            elif event["what"] == "revoked":
                owned -= set(event["queues"])
        return owned

    async def until(self, condition: Callable[[], bool], what: str, timeout_s: float = PATIENCE_S) -> None:
        def holds() -> bool:
            assert self._process.poll() is None, f"the member ended before {what}: {self.events[-5:]}"
            return condition()

        await comes_true(holds, what, timeout_s)

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def signal(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    def kill9(self) -> None:
        self._process.kill()
        self._end()

    def stop(self) -> int:
        """Ask it to close its consumer, and return its exit code."""
        self._process.terminate()
        return self._end()

    def _end(self) -> int:
        code = self._process.wait(PATIENCE_S)
        self._reader.join()
        assert self._process.stdout is not None
        self._process.stdout.close()
        return code


def _tell(what: str, **fields: Any) -> None:
    print(json.dumps({"what": what, "at": time.time(), **fields}), flush=True)


async def _main(options: dict[str, Any]) -> None:
    url, topic = options.pop("url"), options.pop("topic")
    handle_s, block_s = options.pop("handle_s", 0.0), options.pop("block_s", 0.0)
    if (phase := options.pop("dies", None)) is not None:
        die_when(phase)
    run = {name: options.pop(name) for name in ("concurrency", "order") if name in options}

    async def handle(message: Message) -> None:
        place = {"queue": message.queue, "offset": message.offset, "key": message.key, "body": message.text()}
        _tell("begin", **place)
        time.sleep(block_s)  # noqa: ASYNC251 - it may be to block the event loop
        await asyncio.sleep(handle_s)
        _tell("end", **place)

    def queues(ranges: Any) -> list[int]:
        return [each for part in ranges.get(topic, ()) for each in part]

    async with Client(url) as client:
        consumer = Consumer(
            client,
            topic,
            on_assigned=lambda ranges: _tell("assigned", queues=queues(ranges)),
            on_revoked=lambda ranges: _tell("revoked", queues=queues(ranges)),
            **options,
        )
        await consumer.start()
        _tell("started", member=consumer.member_id)
        running = asyncio.create_task(consumer.run(handle, **run))
        closing = asyncio.Event()
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, closing.set)
        waiting = asyncio.create_task(closing.wait())
        await asyncio.wait((running, waiting), return_when=asyncio.FIRST_COMPLETED)
        await consumer.close()
        waiting.cancel()
        await running


if __name__ == "__main__":
    asyncio.run(_main(json.loads(sys.argv[1])))
