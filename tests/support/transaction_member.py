"""A transactional producer in a process of its own, which stops at a step and waits to be killed."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

from lsmq import Client, TransactionalProducer
from lsmq.producer_groups import ProducerGroup
from support.python_process import PythonProcess

#: Where it can stop, in order. ``deciding``: the decision is on its way, or has arrived.
STEPS = ("joined", "sent", "done", "deciding")


class Ledger:
    """What local steps did: a line a transaction, in a file that outlives its writer."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def write(self, transaction: str | None) -> None:
        with self.path.open("a") as file:
            file.write(f"{transaction}\n")

    def has(self, transaction: str) -> bool:
        return self.path.exists() and transaction in self.path.read_text().split()


class ProducerProcess:
    """Runs up to ``step``, says so, and waits for its end."""

    def __init__(self, url: str, group: str, topics: list[str], ledger: Path, step: str) -> None:
        options = {"url": url, "group": group, "topics": topics, "ledger": str(ledger), "step": step}
        program = f"from {__name__} import main; main()"
        self.process = PythonProcess(["-c", program, json.dumps(options)], stderr=None, text=True)

    def wait(self) -> str | None:
        """Return when it has come to its step; the id of its transaction."""
        assert self.process.stdout is not None
        id: str | None = json.loads(self.process.stdout.readline())
        return id

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()


async def _main(url: str, group: str, topics: list[str], ledger: str, step: str) -> None:
    def reached(this: str, id: str | None = None) -> bool:
        if this == step:
            print(json.dumps(id), flush=True)
        return this == step

    async def for_ever() -> Any:
        await asyncio.Event().wait()

    async with Client(url) as client, TransactionalProducer(client, group, session_ms=1_000) as producer:
        if reached("joined"):
            await for_ever()
        transaction = producer.transaction(reference=step)
        for topic in topics:
            await transaction.send(topic, step)
        if reached("sent", transaction.id):
            await for_ever()
        Ledger(Path(ledger)).write(transaction.id)
        if reached("done", transaction.id):
            await for_ever()
        reached("deciding", transaction.id)
        assert transaction.id is not None
        await ProducerGroup(client, group).commit(transaction.id, member=producer.member_id)
        await for_ever()


def main() -> None:
    asyncio.run(_main(**json.loads(sys.argv[1])))
