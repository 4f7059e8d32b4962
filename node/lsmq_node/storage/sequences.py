"""Which batches of idempotent producers may be put in line: by what is stored, and by what is in line before them.

The rules, of a batch (id, epoch, sequence), where *known* is the last batch of this id, in line or stored:

- of an older epoch than the known one it is refused, ``producer_fenced``;
- of a newer epoch, or of an id that is not known, it is the next one if its sequence is 0, else ``unknown_producer``;
- of the known epoch it is the next one if its sequence follows; beyond that it is refused, ``out_of_order_sequence``;
- before that it is a repeat: answered as then if it is the very same batch, ``sequence_reused`` if it is not, and
  ``stale_sequence`` where the answer is not remembered any more;
- behind the last sequence of an epoch, and behind the last epoch, nothing comes: whoever goes on takes another id.

Only the leader decides this. What is in the log was decided, and is noted as it stands.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from enum import Enum

import numpy as np

from lsmq.errors import (
    InvalidRequest,
    LsmqError,
    OutOfOrderSequence,
    ProducerFenced,
    SequenceReused,
    StaleSequence,
    TooManyProducers,
    UnknownProducer,
)

from .columns import I64
from .options import StoreOptions
from .producers import BROKER_PRODUCERS, LAST_EPOCH, LAST_SEQUENCE, WINDOW, BatchKey, Head, Producers, StoredBatch

_NONE: I64 = np.empty(0, np.int64)


class SequenceVerdict(Enum):
    """What becomes of a batch that has no answer yet."""

    NEXT = "next"  # it is stored
    TWICE = "twice"  # it comes with another of the same number, which is


class Sequences:
    """What producers have in line, over what is stored of them. Its owner lets one thread at a time call."""

    def __init__(self, options: StoreOptions, producers: Producers, expired_before: Callable[[int], int]) -> None:
        """``expired_before``: what is stamped before the result is older than so many milliseconds."""
        self._options = options
        self._producers = producers
        self._expired_before = expired_before
        self._in_line: dict[int, deque[StoredBatch]] = {}

    # Asking

    def check(self, keys: Sequence[BatchKey | None], now_ms: int) -> list[StoredBatch | SequenceVerdict]:
        """What becomes of batches that come together, in this order; None is a batch without producer.

        Of a repeat, the answer given before. Batches of one producer may follow one another here, and one may be here
        twice. Raises what :meth:`repeat` does, before anything is put in line.
        """
        ahead: dict[int, dict[int, BatchKey]] = {}  # by producer and sequence: what is next, and comes before here
        return [SequenceVerdict.NEXT if key is None else self._verdict(key, ahead, now_ms) for key in keys]

    def _verdict(
        self, key: BatchKey, ahead: dict[int, dict[int, BatchKey]], now_ms: int
    ) -> StoredBatch | SequenceVerdict:
        before = ahead.get(key.producer_id)
        if before is None:
            found = self.repeat(key, now_ms)
            if found is None:
                ahead[key.producer_id] = {key.sequence: key}
            return found or SequenceVerdict.NEXT
        last = next(reversed(before.values()))
        if key.epoch == last.epoch and key.sequence in before:
            _check_same(key, before[key.sequence].fingerprint)
            return SequenceVerdict.TWICE
        if not _is_next(key, Head(last.epoch, last.sequence + 1, now_ms)):
            found = self.repeat(key, now_ms)
            assert found is not None, "what is in line follows what is stored"
            return found
        if key.epoch != last.epoch:
            before.clear()
        before[key.sequence] = key
        return SequenceVerdict.NEXT

    def repeat(self, key: BatchKey, now_ms: int) -> StoredBatch | None:
        """The answer given before when this batch is a repeat, None when it is the next one.

        Raises ``ProducerFenced``, ``UnknownProducer``, ``OutOfOrderSequence``, ``SequenceReused``, ``StaleSequence``
        when it is neither, ``TooManyProducers``, ``CorruptFile``.
        """
        in_line = self._in_line.get(key.producer_id)
        head = Head(in_line[-1].epoch, in_line[-1].sequence + 1, now_ms) if in_line else self._stored(key)
        if _is_next(key, head):
            if head is None:
                self._check_room(key)
            return None
        found = next((each for each in in_line or () if (each.epoch, each.sequence) == key[1:3]), None)
        if found is None:
            found = self._producers.answer(key.producer_id, key.epoch, key.sequence)
        if found is None:
            raise StaleSequence(
                f"batch {key.sequence} of producer {key.producer_id} was stored before, and others since; only the "
                f"last {WINDOW} answers are remembered",
                producer=key.producer_id,
                sequence=key.sequence,
            )
        _check_same(key, found.fingerprint)
        return found

    def take(self, producer_id: int, epoch: int | None, new: bool, now_ms: int) -> StoredBatch | None:
        """Somebody goes on with this id: the epoch that is to begin, and the position that is known; None where it has
        begun already and nothing came in it.

        ``epoch`` None: the next one. With ``new`` it must not have begun. Raises ``ProducerFenced`` where a later one,
        or this one, has begun, ``InvalidRequest`` where no epoch is left, ``TooManyProducers``, ``CorruptFile``.
        """
        key = BatchKey(producer_id, epoch or 0, 0, 0)
        in_line = self._in_line.get(producer_id)
        if in_line:
            last = in_line[-1]
            head: Head | None = Head(last.epoch, last.sequence + 1, now_ms)
        else:  # As long as anything is known of it, also where its batches are forgotten: an epoch is begun once.
            head = self._producers.head(producer_id)
        if head is None:
            self._check_room(key)
            return StoredBatch(1 if epoch is None else epoch, -1, 0, 0, now_ms, _NONE)
        if epoch is not None and (epoch, 0) == head[:2] and not new:
            return None
        if epoch is not None and epoch <= head.epoch:
            raise _fenced(key._replace(epoch=epoch), head)
        begun = head.epoch + 1 if epoch is None else epoch
        if begun > LAST_EPOCH:
            raise InvalidRequest(
                f"producer {producer_id} has begun epoch {head.epoch}, and the last there is is {LAST_EPOCH}: begin "
                "again with a new producer id",
                producer=producer_id,
                limit=LAST_EPOCH,
            )
        return StoredBatch(begun, -1, 0, 0, now_ms, _NONE, self.position(producer_id))

    def position(self, producer_id: int) -> int:
        """How far the application of a producer is, what is in line included; -1 where that is not known.

        As the last batch said that said anything. May read the disk.
        """
        in_line = self._in_line.get(producer_id, ())
        said = next((each.position for each in reversed(in_line) if each.position >= 0), None)
        return self._producers.position(producer_id) if said is None else said

    def _stored(self, key: BatchKey) -> Head | None:
        head = self._producers.head(key.producer_id)
        # By time that passed: a clock that is put forward makes no repeat a new batch.
        if head is None or head.last_ms < self._expired_before(self._options.producer_expiry_ms):
            return None
        return head

    def _check_room(self, key: BatchKey) -> None:
        if key.producer_id >= BROKER_PRODUCERS:  # They are few, and what they bring was taken.
            return
        limit = self._options.max_producers
        if self._producers.count >= limit:
            raise TooManyProducers(
                f"this shard knows {limit} producers (max_producers), and producer {key.producer_id} is new. Producers "
                f"that send nothing are forgotten after {self._options.producer_expiry_ms} ms (producer_expiry_ms): "
                "use one for many batches, or raise the limit",
                limit=limit,
                producer=key.producer_id,
            )

    # Changing

    def put(self, producer_id: int, stored: StoredBatch) -> None:
        """A batch is in line."""
        self._in_line.setdefault(producer_id, deque()).append(stored)

    def landed(self, producer_id: int, lsn: int) -> None:
        """The oldest batch that a producer has in line is applied: the state remembers it from here on."""
        in_line = self._in_line.get(producer_id)
        if in_line and in_line[0].lsn == lsn:
            in_line.popleft()
            if not in_line:
                del self._in_line[producer_id]

    def clear(self) -> None:
        """The line is dropped."""
        self._in_line.clear()


def _is_next(key: BatchKey, head: Head | None) -> bool:
    """Whether it is the batch that comes next; False for one that may be a repeat. Raises when it is neither."""
    if head is None or key.epoch > head.epoch:
        if key.sequence:
            raise _unknown(key)
        return True
    if key.epoch < head.epoch:
        raise _fenced(key, head)
    if key.sequence > LAST_SEQUENCE:
        wrong = f"the last of an epoch is {LAST_SEQUENCE}: begin again with a new producer id"
    elif key.sequence > head.next_sequence:
        wrong = f"{head.next_sequence} was expected: send the missing batches first"
    else:
        return key.sequence == head.next_sequence
    raise OutOfOrderSequence(
        f"batch {key.sequence} of producer {key.producer_id} came, and {wrong}",
        producer=key.producer_id,
        sequence=key.sequence,
        expected=head.next_sequence,
    )


def _fenced(key: BatchKey, head: Head) -> LsmqError:
    return ProducerFenced(
        f"producer {key.producer_id} has begun epoch {head.epoch}; batch {key.sequence} is of epoch {key.epoch}: "
        "somebody else goes on in its place. Stop here, or take over again (a new GroupProducer does), or send under a "
        "new producer id",
        producer=key.producer_id,
        epoch=key.epoch,
        latest=head.epoch,
    )


def _unknown(key: BatchKey) -> LsmqError:
    return UnknownProducer(
        f"producer {key.producer_id} is not known here in epoch {key.epoch}, and its batch has sequence "
        f"{key.sequence}, not 0: it sent nothing for longer than producer_expiry_ms, or the shard was lost. Whether "
        "the batch was stored before cannot be told; begin again with a new producer id.",
        producer=key.producer_id,
        sequence=key.sequence,
    )


def _check_same(key: BatchKey, stored: int) -> None:
    if key.fingerprint != stored:
        raise SequenceReused(
            f"batch {key.sequence} of producer {key.producer_id} was stored with other messages, or for another topic: "
            "nothing was stored now. Repeat a batch exactly as it was, and give each batch a sequence of its own",
            producer=key.producer_id,
            sequence=key.sequence,
        )
