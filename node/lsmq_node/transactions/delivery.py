"""From a coordinator to the shards of a transaction: batches, sent to their leader until it has them.

Between nodes this goes over the internal port, signed (:class:`lsmq_node.broker.Peers`); a node asks itself without it.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import astuple, dataclass, field
from typing import Any

from lsmq.errors import DeliveriesAhead, InvalidBatch, InvalidRequest, LsmqError
from lsmq.record_batch import HEADER, HEADER_BYTES, Codec, RecordBatch
from lsmq_node.broker import Maker

OPERATION = "deliver"
TIMEOUT_S = 3.0
#: Far more than coordinators send at once.
MAX_BATCHES = 100_000
MAX_NUMBER = 1 << 53


@dataclass(frozen=True, slots=True)
class TransactionDelivery:
    """Attributes:

    coordinator: the shard that coordinates.
    limit: it has sent no batch above this number before.
    batches: number, topic's id, topic, and the packed batch; at least one. Numbers follow one another, and the first is
        at most one above ``limit``.
    makers: whose the batches are, by number, as far as that is known.
    """

    coordinator: int
    limit: int
    batches: list[tuple[int, int, str, bytes]]
    makers: Mapping[int, Maker] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        makers = [(number, *astuple(maker)) for number, maker in self.makers.items()]
        return {"coordinator": self.coordinator, "limit": self.limit, "batches": self.batches, "makers": makers}

    @classmethod
    def from_dict(cls, found: dict[str, Any], coordinators: int) -> TransactionDelivery:
        """What another node sent, where there are so many coordinators. Nothing is decompressed: they pack nothing.

        Raises ``InvalidRequest`` and ``InvalidBatch``.
        """
        coordinator, limit, items = found["coordinator"], found["limit"], found["batches"]
        if type(coordinator) is not int or not 0 <= coordinator < coordinators:
            raise InvalidRequest(f"coordinator is {coordinator!r}; shards are 0 to {coordinators - 1}")
        if type(limit) is not int or not 0 <= limit < MAX_NUMBER:
            raise InvalidRequest(f"limit is {limit!r}; it must be a number below 2**53")
        if type(items) is not list or not 1 <= len(items) <= MAX_BATCHES:
            raise InvalidRequest(f"a delivery has 1 to {MAX_BATCHES} batches")
        batches: list[tuple[int, int, str, bytes]] = []
        for number, topic_id, topic, batch in items:
            if (type(number), type(topic_id), type(topic), type(batch)) != (int, int, str, bytes):
                raise InvalidRequest("a batch of a delivery is a number, a topic's id and name, and bytes")
            batches.append((number, topic_id, topic, batch))
        for *_, batch in batches:
            _check_batch(batch)
        # Nodes of a release before say nothing of these.
        makers = {int(number): Maker(principal, address) for number, principal, address in found.get("makers", ())}
        return cls(coordinator, limit, batches, makers)


#: In place of a batch's checksum and length, which is never 0: names come first, and the batch counts them.
_NAMED = bytes(8)
_LENGTH = struct.Struct("<I")


def pack_named(names: bytes, batch: bytes) -> bytes:
    """A batch for a topic with named queues, and before it the names that its queues count, joined by NUL."""
    return b"".join((_NAMED, _LENGTH.pack(len(names)), names, batch))


def split_named(packed: bytes) -> tuple[bytes | None, bytes]:
    """What :func:`pack_named` was given; None for the names of a batch that has numbers. Raises ``InvalidBatch``."""
    if not packed.startswith(_NAMED):
        return None, packed
    begin = len(_NAMED) + _LENGTH.size
    end = begin + int.from_bytes(packed[len(_NAMED) : begin], "little")
    if not begin < end < len(packed):
        raise InvalidBatch("a batch of a delivery says more names than it has")
    return packed[begin:end], packed[end:]


def _check_batch(packed: bytes) -> None:
    _, batch = split_named(packed)
    if len(batch) < HEADER_BYTES or HEADER.unpack_from(batch)[3] != Codec.NONE:
        raise InvalidBatch("a batch of a delivery is one record batch, not compressed")
    RecordBatch(batch, source="delivery")  # raises what is wrong with it


#: Sends a delivery to the leader of a shard; returns how many batches were for topics that are gone.


def may_be_stored(error: LsmqError) -> bool:
    """Whether a delivery that ended so may have been carried out: yes, unless it is certain that it was not."""
    return bool(error.details.get("sent", not isinstance(error, DeliveriesAhead)))
