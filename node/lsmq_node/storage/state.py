"""What a shard remembers beside its messages: topics and the ends of their queues, committed offsets, producers,
documents.

It is the deterministic result of the log: every replica that has applied the same entries has the same state,
and a *checkpoint* of it goes with each flush, so that the log before it can go.

Three numbers a queue, in arrays of 8 bytes over the queues of a topic: where the next record will go
(``next``), how far readers may read (``committed``), and the first offset kept (``start``). Arrays that
nothing touches take no memory, so an idle queue of a large topic costs nothing.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lsmq.errors import InvalidRequest, InvalidTopicName, OutOfOrderSequence, StaleSequence, UnknownProducer

from .columns import I64, U32
from .documents import Documents

MAX_TOPIC_NAME = 200
_NAME_CHARACTERS = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-")
#: A producer's last batches, whose answers are remembered.
PRODUCER_WINDOW = 8
PRODUCER_LIMIT = 10_000


def check_topic_name(name: str) -> None:
    """Raises ``InvalidTopicName`` with the legal form."""
    if not 1 <= len(name) <= MAX_TOPIC_NAME or not _NAME_CHARACTERS.issuperset(name) or name in (".", ".."):
        raise InvalidTopicName(
            f"{name!r} is not a legal topic name: use 1 to {MAX_TOPIC_NAME} letters, digits, '.', '_' and '-'",
            topic=name,
        )


@dataclass(frozen=True, slots=True)
class TopicOptions:
    """How a topic behaves.

    Attributes:
        retention_ms: drop messages older than this; None keeps them.
        retention_bytes: drop the oldest beyond this many bytes of the topic on a shard; None keeps them.
        ack: ``quorum`` or ``leader``: when a write is acknowledged, unless the request says otherwise.
        max_message_bytes: refuse larger messages; None takes the node's limit.
        key_queues: spread keys over this many queues, the first, for ever: strict order, whatever the topic grows to.
            None spreads them over all there are.
    """

    retention_ms: int | None = None
    retention_bytes: int | None = None
    ack: str = "quorum"
    max_message_bytes: int | None = None
    key_queues: int | None = None

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> TopicOptions:
        """Raises ``InvalidRequest`` naming an unknown option or a bad value."""
        known = [item.name for item in fields(cls)]
        for name in values:
            if name not in known:
                raise InvalidRequest(f"unknown topic option {name!r}; there are: {', '.join(known)}", option=name)
        for name in ("retention_ms", "retention_bytes", "max_message_bytes", "key_queues"):
            value = values.get(name)
            if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < 1):
                raise InvalidRequest(f"topic option {name} must be a whole number above 0, not {value!r}", option=name)
        ack = values.get("ack", "quorum")
        if ack not in ("quorum", "leader"):
            raise InvalidRequest(f"topic option ack must be 'quorum' or 'leader', not {ack!r}", option="ack")
        return cls(**values)

    def to_dict(self) -> dict[str, Any]:
        values = asdict(self)
        if self.key_queues is None:
            del values["key_queues"]  # As topics of earlier releases are written down.
        return values


@dataclass(frozen=True, slots=True)
class Topic:
    """A topic: ``queues`` logical queues in the cluster, of which a shard holds some.

    ``ranges`` are ``(first, end, shard)``, half-open and in order, once the topic has grown: a queue stays where it is.
    Empty, they are cut evenly. A store knows nothing of them.
    """

    id: int
    name: str
    queues: int
    options: TopicOptions = field(default_factory=TopicOptions)
    created_ms: int = 0
    ranges: tuple[tuple[int, int, int], ...] = field(default=(), compare=False)

    @property
    def key_queues(self) -> int:
        """How many queues the hash of a key chooses from."""
        return self.options.key_queues or self.queues


class TopicState:
    """A topic's queues ``[first, end)`` on this shard. Arrays are indexed by ``queue - first``.

    Once a topic has grown, queues in between may be other shards': nothing is ever stored in those rows.

    The three numbers of a queue lie side by side, so that an append and its commit touch one cache line of it.
    """

    __slots__ = (
        "_rows",
        "committed",
        "deletes",
        "end",
        "first",
        "next",
        "scratch",
        "start",
        "topic",
        "trims",
        "version",
    )

    def __init__(self, topic: Topic, first: int, end: int) -> None:
        self.topic = topic
        self.first = first
        self.end = end
        self.next: I64
        self.committed: I64
        self.start: I64
        self.scratch: I64  # of whoever advances ``next``
        self._use(np.zeros((end - first, 4), np.int64))
        self.deletes = 0  # tombstones ever applied
        self.trims = 0  # raised by every change of ``start``
        self.version = 0  # raised by every change; a checkpoint packs what changed

    def _use(self, rows: NDArray[np.int64]) -> None:
        self._rows = rows
        self.next, self.committed, self.start, self.scratch = rows.T

    def restore(self, committed: I64, start: I64) -> None:
        """Take over what a checkpoint holds: the ends and the log starts of all queues."""
        count = len(committed)
        self.next[:count] = self.committed[:count] = committed
        self.start[:count] = start

    def grow(self, topic: Topic, end: int) -> None:
        """More queues at the end. Arrays double, so that growing one by one stays cheap."""
        count = end - self.first
        if count > len(self._rows):
            rows = np.zeros((max(count, 2 * len(self._rows), 1024), 4), np.int64)
            rows[: len(self._rows)] = self._rows
            self._use(rows)
        self.topic, self.end = topic, end
        self.version += 1


@dataclass(frozen=True, slots=True)
class Stored:
    """The remembered answer to a producer's batch."""

    sequence: int
    lsn: int
    stored_ms: int
    offsets: I64


class Producer:
    """An idempotent producer as a shard knows it."""

    __slots__ = ("answers", "epoch", "next_sequence")

    def __init__(self, epoch: int) -> None:
        self.epoch = epoch
        self.next_sequence = 0
        self.answers: deque[Stored] = deque(maxlen=PRODUCER_WINDOW)


def out_of_order(producer_id: int, sequence: int, expected: int) -> OutOfOrderSequence:
    return OutOfOrderSequence(
        f"batch {sequence} of producer {producer_id} came, {expected} was expected: send the missing batches first",
        producer=producer_id,
        sequence=sequence,
        expected=expected,
    )


class Producers:
    """Idempotent producers by id, the least recently used forgotten beyond a limit."""

    def __init__(self, limit: int = PRODUCER_LIMIT) -> None:
        self._limit = limit
        self._known: OrderedDict[int, Producer] = OrderedDict()

    def __len__(self) -> int:
        return len(self._known)

    def check(self, producer_id: int, epoch: int, sequence: int) -> Stored | None:
        """The answer given before when this batch is a repeat, None when it is the next one.

        Raises ``OutOfOrderSequence``, ``StaleSequence`` or ``UnknownProducer`` when it is neither.
        """
        producer = self._known.get(producer_id)
        if producer is None or epoch > producer.epoch:
            if sequence == 0:
                return None
            raise UnknownProducer(
                f"producer {producer_id} is not known here and its batch has sequence {sequence}, not 0: its state "
                "expired or the shard was lost. Whether the batch was stored before cannot be told; begin again "
                "with a new producer id.",
                producer=producer_id,
                sequence=sequence,
            )
        if sequence == producer.next_sequence and epoch == producer.epoch:
            return None
        for stored in producer.answers:
            if stored.sequence == sequence and epoch == producer.epoch:
                return stored
        if sequence < producer.next_sequence or epoch < producer.epoch:
            raise StaleSequence(
                f"batch {sequence} of producer {producer_id} was stored before, and {producer.next_sequence - 1} "
                f"since; only the last {PRODUCER_WINDOW} answers are remembered",
                producer=producer_id,
                sequence=sequence,
            )
        raise out_of_order(producer_id, sequence, producer.next_sequence)

    def epoch(self, producer_id: int) -> int | None:
        """The latest epoch that a producer came with."""
        producer = self._known.get(producer_id)
        return None if producer is None else producer.epoch

    def record(self, producer_id: int, epoch: int, stored: Stored) -> None:
        """Remember a batch and its answer."""
        producer = self._known.get(producer_id)
        if producer is None or epoch > producer.epoch:
            producer = self._known[producer_id] = Producer(epoch)
        self._known.move_to_end(producer_id)
        producer.next_sequence = stored.sequence + 1
        producer.answers.append(stored)
        while len(self._known) > self._limit:
            self._known.popitem(last=False)

    def dump(self) -> list[Any]:
        """For a checkpoint; least recently used first."""
        return [
            [
                producer_id,
                producer.epoch,
                producer.next_sequence,
                [[s.sequence, s.lsn, s.stored_ms, s.offsets.tobytes()] for s in producer.answers],
            ]
            for producer_id, producer in self._known.items()
        ]

    @classmethod
    def load(cls, rows: list[Any]) -> Producers:
        producers = cls()
        for producer_id, epoch, next_sequence, answers in rows:
            producer = producers._known[producer_id] = Producer(epoch)
            producer.next_sequence = next_sequence
            producer.answers.extend(
                Stored(sequence, lsn, stored_ms, np.frombuffer(offsets, np.int64))
                for sequence, lsn, stored_ms, offsets in answers
            )
        return producers


class ShardState:
    """Topics, committed offsets, producers and documents of a shard, as of the last applied entry."""

    def __init__(self) -> None:
        self.topics: dict[int, TopicState] = {}
        self.by_name: dict[str, TopicState] = {}
        self.next_topic_id = 1
        self.offsets: dict[tuple[str, int], I64] = {}  # committed offset + 1; 0 means none
        self.offsets_version: dict[tuple[str, int], int] = {}
        self.producers = Producers()
        self.documents = Documents()
        self.epochs: list[tuple[int, int]] = []  # leader epochs, and the LSN at which each begins

    def put_topic(self, topic: Topic, first: int, end: int) -> None:
        """Create a topic, or give an existing one new options or more queues."""
        state = self.topics.get(topic.id)
        if state is None:
            state = TopicState(topic, first, end)
            self.topics[topic.id] = self.by_name[topic.name] = state
            self.next_topic_id = max(self.next_topic_id, topic.id + 1)
        else:
            state.grow(topic, end)

    def drop_topic(self, topic_id: int) -> None:
        state = self.topics.pop(topic_id, None)
        if state is not None:
            self.by_name.pop(state.topic.name, None)
        for key in [key for key in self.offsets if key[1] == topic_id]:
            del self.offsets[key]
            self.offsets_version.pop(key, None)

    def drop_group(self, group: str) -> None:
        """Forget all committed offsets of a group."""
        for key in [key for key in self.offsets if key[0] == group]:
            del self.offsets[key]
            self.offsets_version[key] += 1  # what a checkpoint has packed is not that of the next group of this name

    def commit_offsets(self, group: str, topic_id: int, queues: U32, offsets: I64, *, reset: bool) -> None:
        """Set a group's committed offsets; without ``reset`` they only move forward."""
        state = self.topics.get(topic_id)
        if state is None:
            return
        key = (group, topic_id)
        committed = self.offsets.get(key)
        if committed is None or len(committed) < len(state.next):
            wider = np.zeros(len(state.next), np.int64)
            if committed is not None:
                wider[: len(committed)] = committed
            committed = self.offsets[key] = wider
        index = queues - np.uint32(state.first)
        values = offsets + 1
        if reset:
            committed[index] = values
        else:
            np.maximum.at(committed, index, values)
        self.offsets_version[key] = self.offsets_version.get(key, 0) + 1
