"""What a coordinator has in memory: the documents of its producer groups, and what is found by them. Pure."""

from __future__ import annotations

from collections.abc import Iterable

import msgpack
from sortedcontainers import SortedDict

from lsmq_node.storage.documents import LANES, SEQUENCES, TRANSACTIONS

from .records import MEMBERS, BookChange, MemberSequence, ProducerMember, RecordKey, TransactionRecord, split_key


class DeliveryLane:
    """What one shard is to get from this coordinator, in order.

    ``next`` is the number of the next batch that is decided; the shard cannot have had one above ``limit``.
    """

    __slots__ = ("limit", "next", "waiting")

    def __init__(self, next_: int = 1) -> None:
        self.next = next_
        self.limit = next_ - 1
        self.waiting: SortedDict[int, RecordKey] = SortedDict()  # by the number of the first batch


class Memory:
    """Loop thread only."""

    def __init__(self) -> None:
        self.members: dict[RecordKey, ProducerMember] = {}
        self.transactions: dict[RecordKey, TransactionRecord] = {}
        self.sequences: dict[RecordKey, MemberSequence] = {}
        self.lanes: dict[int, DeliveryLane] = {}
        #: By group: its members, its transactions that are not finished, its sequences.
        self._members_of: dict[str, set[str]] = {}
        self._unfinished_of: dict[str, set[str]] = {}
        self._sequences_of: dict[str, int] = {}
        self.held_bytes = 0  # of messages that are kept here, since their transactions are not finished
        #: In the order in which they ended: since when it is known here, and what its record takes.
        self._finished: dict[RecordKey, tuple[float, int]] = {}
        self.finished_bytes = 0
        self._seen: dict[RecordKey, float] = {}
        self._due: dict[RecordKey, float] = {}  # by open transaction: when to ask about it
        self._open_since: dict[RecordKey, float] = {}  # known here
        #: By group and sequence: the transaction that is open of it.
        self._open_in: dict[RecordKey, RecordKey] = {}
        #: By member: transactions it is to be asked about, until it was told.
        self.asked: dict[RecordKey, dict[str, None]] = {}

    def load(self, documents: Iterable[tuple[str, bytes]], now: float) -> None:
        """Take what documents say, lanes first; then :meth:`loaded`. Members get all their time again."""
        plan = BookChange()
        for key, body in documents:
            if key.startswith(MEMBERS):
                plan.members[split_key(key, MEMBERS)] = ProducerMember.decode(body, key)
            elif key.startswith(TRANSACTIONS):
                transaction = TransactionRecord.decode(body, key)
                plan.transactions[transaction.key] = transaction
            elif key.startswith(SEQUENCES):
                plan.sequences[split_key(key, SEQUENCES)] = MemberSequence.decode(body, key)
            elif key == LANES:
                self.lanes = {
                    shard: DeliveryLane(next_) for shard, next_ in msgpack.unpackb(body, strict_map_key=False).items()
                }
        self.apply(plan, now)

    def loaded(self, now: float, now_ms: int) -> None:
        """All documents were taken. Open transactions wait on, as far as it is known when they were silent first: when
        a check or a later part came is in no document."""
        for key in self._due:
            transaction = self.transactions[key]
            wait_ms = transaction.check_after_ms
            if transaction.checks:
                wait_ms = transaction.check_every_ms
            elif (transaction.group, transaction.member) not in self.members:
                wait_ms = 0
            elif transaction.parts == 1:
                wait_ms -= min(max(0, now_ms - transaction.begun_ms), wait_ms)
            self._due[key] = now + wait_ms / 1000
        decided_ms = {key: self.transactions[key].decided_ms for key in self._finished}
        self._finished = {key: self._finished[key] for key in sorted(decided_ms, key=decided_ms.__getitem__)}

    def apply(self, plan: BookChange, now: float) -> None:
        """The plan's documents are in line."""
        for key, member in plan.members.items():
            if member is not None:
                self.members[key] = member
                self._members_of.setdefault(key[0], set()).add(key[1])
                self._seen.setdefault(key, now)
            else:
                self._drop_member(key, now)
        for number, next_ in plan.lanes.items():
            self.lanes.setdefault(number, DeliveryLane()).next = next_
        for number, last in plan.limits.items():
            self.lanes[number].limit = max(self.lanes[number].limit, last)
        for key, transaction in plan.transactions.items():
            self._apply_transaction(key, transaction, now)
        for key, sequence in plan.sequences.items():
            if sequence is not None:
                if key not in self.sequences:
                    self._sequences_of[key[0]] = self._sequences_of.get(key[0], 0) + 1
                self.sequences[key] = sequence
            elif self.sequences.pop(key, None) is not None:
                self._sequences_of[key[0]] -= 1
                if not self._sequences_of[key[0]]:
                    del self._sequences_of[key[0]]

    def _drop_member(self, key: RecordKey, now: float) -> None:
        self.members.pop(key, None)
        self._seen.pop(key, None)
        for id in self.asked.pop(key, ()):
            if (key[0], id) in self._due:
                self._due[key[0], id] = now
        of = self._members_of.get(key[0], set())
        of.discard(key[1])
        if not of:
            self._members_of.pop(key[0], None)
        for other, transaction in self._open_of(key[0]):
            if transaction.member == key[1]:
                self._due[other] = now

    def _open_of(self, group: str) -> list[tuple[RecordKey, TransactionRecord]]:
        keys = [(group, id) for id in self._unfinished_of.get(group, ())]
        return [(key, self.transactions[key]) for key in keys if self.transactions[key].is_open]

    def _apply_transaction(self, key: RecordKey, transaction: TransactionRecord | None, now: float) -> None:
        former = self.transactions.get(key)
        if former is not None:
            for shard, first in former.waiting.items():
                waiting = self.lanes[shard].waiting
                # Where batches are given new numbers, the next one may have taken this one's place already.
                if waiting.get(first) == key and (transaction is None or transaction.waiting.get(shard) != first):
                    del waiting[first]
        for sign, each in ((-1, former), (1, transaction)):
            if each is not None and not each.is_finished:
                self.held_bytes += sign * each.size_bytes
        if transaction is None:
            self.transactions.pop(key, None)
            self.finished_bytes -= self._finished.pop(key, (0.0, 0))[1]
            self._open_since.pop(key, None)
            return
        self.transactions[key] = transaction
        unfinished = self._unfinished_of.setdefault(key[0], set())
        if transaction.is_finished:
            unfinished.discard(key[1])
            if not unfinished:
                del self._unfinished_of[key[0]]
            if key not in self._finished:
                size = len(transaction.encode())
                self._finished[key] = now, size
                self.finished_bytes += size
        else:
            unfinished.add(key[1])
        if not transaction.is_open:
            self._due.pop(key, None)
            self._open_since.pop(key, None)
        elif former is None or former.parts != transaction.parts:
            self._due[key] = now + transaction.check_after_ms / 1000
            self._open_since.setdefault(key, now)
        sequence = key[0], transaction.sequence
        if transaction.sequence and transaction.is_open:
            self._open_in[sequence] = key
        elif self._open_in.get(sequence) == key:
            del self._open_in[sequence]
        for shard, first in transaction.waiting.items():
            self.lanes.setdefault(shard, DeliveryLane()).waiting[first] = key

    # Looking

    def groups(self) -> list[str]:
        """Groups with members, or with transactions that are not finished or remembered."""
        return sorted({*self._members_of, *(group for group, _ in self.transactions)})

    def members_of(self, group: str) -> list[str]:
        return sorted(self._members_of.get(group, ()))

    def has_members(self, group: str) -> bool:
        return group in self._members_of

    def unfinished(self, group: str) -> int:
        return len(self._unfinished_of.get(group, ()))
