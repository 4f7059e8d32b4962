"""A leader whose log holds something of everything, and what a replica made from it must equal."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from lsmq_node.storage import ShardStore
from lsmq_node.storage.state import StoredTopic, TopicOptions

from .harness import Put, batch_of, body, contents, known_deleted, remembered, tiny

QUEUES = 4
TOPIC = 1


class Leader:
    """A replicated store that is its own in-sync set, and what its producers do to it."""

    def __init__(self, store: ShardStore, seed: int = 0) -> None:
        self.store = store
        self.chance = random.Random(seed)
        self.epoch = 0
        self.sequence = 0
        self.begin_epoch()
        self.commit(store.put_topic(StoredTopic(TOPIC, "t", QUEUES, TopicOptions(), 5), 0, QUEUES))

    def begin_epoch(self) -> None:
        self.epoch += 2
        self.commit(self.store.replica.begin_epoch(self.epoch, 7, 1))

    def commit(self, appended: Any) -> int:
        self.store.replica.advance(self.store.replica.write())
        assert appended.lsn <= self.store.committed_lsn
        return int(appended.lsn)

    def put(self, size: int, **fields: Any) -> int:
        queue = self.chance.randrange(QUEUES)
        return self.commit(self.store.append(TOPIC, batch_of([Put(queue, body(size, size))], **fields)))

    def put_numbered(self) -> int:
        lsn = self.put(self.chance.randrange(1, 900), producer_id=77, producer_epoch=1, sequence=self.sequence)
        self.sequence += 1
        return lsn

    def positions(self) -> tuple[Any, Any]:
        queues = np.array([self.chance.randrange(QUEUES)], np.uint32)
        latest = int(self.store.latest_offsets(TOPIC, queues)[0])
        return queues, np.array([self.chance.randint(0, latest)], np.int64)

    def something(self) -> int:
        """Any write there is; mostly messages. Returns the committed LSN."""
        match self.chance.randrange(13):
            case 0:
                return self.commit(self.store.trim(TOPIC, *self.positions()))
            case 1 | 2:
                return self.commit(self.store.delete(TOPIC, *self.positions()))
            case 3:
                group = self.chance.choice(("g", "h"))
                return self.commit(self.store.commit_offsets(group, TOPIC, *self.positions(), reset=True))
            case 4 | 5:
                return self.put_numbered()
            case 6:
                self.begin_epoch()
                return self.store.committed_lsn
            case 7:
                value = self.chance.choice((None, b"", b"x" * 500))
                return self.commit(self.store.put_documents({f"d/{self.chance.randrange(5)}": value}))
            case _:
                return self.put(self.chance.choice((1, 40, 700, 3_000, 7_900)))

    def write_much(self, times: int = 120) -> None:
        for _ in range(times):
            self.something()


def shown(store: ShardStore) -> dict[str, Any]:
    """All that a store says to its users, and what it remembers of its producers."""
    topics = store.topics()
    return {
        "topics": topics,
        "contents": contents(store),
        "earliest": {topic.name: store.earliest_offsets(topic.id).tolist() for topic in topics},
        "latest": {topic.name: store.latest_offsets(topic.id).tolist() for topic in topics},
        "groups": {
            (group, topic.name): store.committed_offsets(group, topic.id).tolist()
            for group in store.groups()
            for topic in topics
        },
        "producers": remembered(store),
        "documents": store.documents(),
        "next_topic_id": store._state.next_topic_id,
        "deleted": {topic.name: known_deleted(store._state.topics[topic.id]) for topic in topics},
        "epoch": store.replica.history[-1:],
        "committed_lsn": store.committed_lsn,
    }


def log_bytes(store: ShardStore, first: int) -> bytes:
    parts = []
    while piece := store.replica.read(first, 1 << 20):
        parts.append(piece)
        first += len(piece)
    return b"".join(parts)


def catch_up(source: ShardStore, target: ShardStore, pieces: Iterator[int] | None = None) -> None:
    at = target.replica.end_lsn
    while piece := source.replica.read(at, next(pieces) if pieces is not None else 1 << 20):
        target.replica.receive(at, piece)
        at += len(piece)
    target.replica.sync()
    target.replica.advance(source.committed_lsn)


def open_replica(path: Path, **changes: Any) -> ShardStore:
    return ShardStore.open(path, tiny(**changes), replicated=True)
