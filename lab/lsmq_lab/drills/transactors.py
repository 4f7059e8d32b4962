"""Transactional producers in processes of their own, to be killed at any moment.

A producer's *ledger* is its local step: a file with a line ``<transaction> <key> <queue> <sequence> <digest> ...`` for
each transaction whose local step was done, written in one piece. Whoever is asked about a transaction of a producer
that died looks into all ledgers. What is in a ledger must be seen by consumers, all of it; nothing else may be.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import random
import signal
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import xxhash

from lsmq import Client, TransactionalProducer, TransactionInfo

_DEADLINE_MS = 120_000
_PADDING = "y" * 60
_ROLLED_BACK = 0.2
_PRODUCER = 10**9  # sequences of one producer


class _Regret(Exception):
    """The local step is not done after all."""


@dataclass(frozen=True, slots=True)
class LocalStep:
    """A message whose transaction's local step was done."""

    transaction: str
    key: str
    queue: int
    sequence: int
    digest: int


def read_ledger(path: Path) -> list[LocalStep]:
    """A line that was cut off is no entry: its local step was not done."""
    entries: list[LocalStep] = []
    for line in path.read_bytes().split(b"\n")[:-1]:
        transaction, *fields = line.decode().split(" ")
        for key, queue, sequence, digest in zip(fields[::4], fields[1::4], fields[2::4], fields[3::4], strict=True):
            entries.append(LocalStep(transaction, key, int(queue), int(sequence), int(digest)))
    return entries


async def transact(
    client: Client,
    topics: Sequence[str],
    queues: int,
    group: str,
    directory: Path,
    number: int,
    stopping: asyncio.Event,
) -> None:
    """Transactions over all topics, one after the other, until ``stopping``."""
    rng = random.Random()
    ledger = os.open(directory / f"{number}", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)

    def check(transaction: TransactionInfo) -> str:
        name = f"{transaction.id} ".encode()
        done = any(
            line.startswith(name) for path in directory.iterdir() for line in path.read_bytes().split(b"\n")[:-1]
        )
        return "commit" if done else "rollback"

    sequences = itertools.count(number * _PRODUCER)
    async with TransactionalProducer(
        client, group, check=check, session_ms=1_000, check_after_ms=2_000, check_every_ms=1_000, max_checks=1_000
    ) as producer:
        while not stopping.is_set():
            fields: list[bytes] = []
            try:
                async with producer.transaction() as transaction:
                    for topic in topics:
                        for queue in rng.sample(range(queues), min(queues, 3)):
                            sequence, key = next(sequences), f"t{number}-{topic}-{queue}"
                            body = f"{sequence} {key} {_PADDING}".encode()
                            await transaction.send(topic, body, key=key, queue=queue)
                            fields.append(
                                b"%s %d %d %d" % (key.encode(), queue, sequence, xxhash.xxh64_intdigest(body))
                            )
                    if rng.random() < _ROLLED_BACK:
                        raise _Regret
                    assert transaction.id is not None
                    os.write(ledger, b" ".join([transaction.id.encode(), *fields]) + b"\n")
            except _Regret:
                continue
    os.close(ledger)


async def _main(
    urls: Sequence[str], directory: str, topics: Sequence[str], queues: int, group: str, number: int
) -> None:
    stopping = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopping.set)
    async with Client(list(urls), deadline_ms=_DEADLINE_MS) as client:
        await transact(client, topics, queues, group, Path(directory), number, stopping)


def main() -> None:
    """A producer of its own process, until SIGTERM. Its options are the first argument."""
    asyncio.run(_main(**json.loads(sys.argv[1])))
