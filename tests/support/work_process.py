"""A consumer of a work queue in a process of its own, for tests that kill it. It prints the body of each task it has
begun and ended, a line of JSON each."""

from __future__ import annotations

import asyncio
import json
import sys
import threading
from typing import Any

from lsmq import Client, Task, WorkQueue
from support.python_process import PythonProcess


class WorkerProcess:
    """Starts at once; ``begun`` and ``ended`` grow as it tells."""

    def __init__(self, urls: list[str], topic: str, group: str, **options: Any) -> None:
        """``handle_s``, ``concurrency``, and the options of :class:`WorkQueue`."""
        self.begun: list[str] = []
        self.ended: list[str] = []
        arguments = json.dumps({"urls": urls, "topic": topic, "group": group, **options})
        self._process = PythonProcess([__file__, arguments], stderr=None, text=True)
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            what, body = json.loads(line)
            (self.begun if what == "begin" else self.ended).append(body)

    def kill9(self) -> None:
        self._process.kill()
        self._process.wait(30)
        self._reader.join()
        assert self._process.stdout is not None
        self._process.stdout.close()


async def _main(options: dict[str, Any]) -> None:
    urls, topic, group = options.pop("urls"), options.pop("topic"), options.pop("group")
    handle_s, concurrency = options.pop("handle_s", 0.0), options.pop("concurrency", 1)

    async def handle(task: Task) -> None:
        print(json.dumps(["begin", task.text()]), flush=True)
        await asyncio.sleep(handle_s)
        await task.ack()
        print(json.dumps(["end", task.text()]), flush=True)

    async with Client(urls) as client, WorkQueue(client, topic, group, **options) as work:
        await work.run(handle, concurrency=concurrency)


if __name__ == "__main__":
    asyncio.run(_main(json.loads(sys.argv[1])))
