"""What the coordinator of a shard's producer groups knows and decides. Pure: no I/O, no clock.

A call that changes something returns a :class:`BookChange` and leaves the book as it is; whoever has put the plan's
documents in line tells the book with :meth:`Memory.apply`. An empty plan says that it was done before: every step can
be repeated.

``now`` is in seconds and only has to rise; ``now_ms`` is the shard's time, milliseconds since 1970.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from itertools import islice
from typing import TypeVar

from lsmq.errors import (
    DocumentsFull,
    InvalidRequest,
    SequenceTakenOver,
    TooManyGroups,
    TooManyMembers,
    TooManyTransactions,
    TransactionDecided,
    TransactionTooLarge,
    UnknownProducerMember,
    UnknownTransaction,
)
from lsmq_node.storage.documents import MAX_DOCUMENT_KEY_BYTES

from .memory import Memory
from .records import (
    BookChange,
    MemberSequence,
    ProducerMember,
    RecordKey,
    TransactionPart,
    TransactionRecord,
    TransactionState,
    part_key,
)

MAX_MEMBERS = 1_000  # a group
MAX_ALL_SEQUENCES = 100_000  # a shard
MAX_UNFINISHED = 10_000  # transactions a group
MAX_SEQUENCES = 1_000  # a group
MAX_PARTS = 1_000  # a transaction
MAX_MESSAGES = 10_000  # a transaction
MAX_BYTES = 4 << 20  # a transaction, packed
MAX_OPEN_MS = 24 * 3_600_000
#: The shard's time is believed of a transaction that has been known here for so long, by the clock that counts.
BELIEVED_S = 3_600.0
#: A finished transaction is remembered for so long, for requests that come again; and at most so many of a shard, which
#: take a quarter of what those may that are not finished.
REMEMBER_S = 600.0
MAX_REMEMBERED = 30_000

#: Members whose sessions end, or transactions that are forgotten, in one change: with their names it is well below what
#: such a change may have. The others have their turn the next time.
MOST_AT_ONCE = 10_000

#: A member may have so many beginnings under way that overtake one another.
MAX_MISSING = 256

#: What a record takes at most, but for the names of topics.
_RECORD_BYTES = 8192

#: Of transactions that are asked about, rolled back, or numbered anew in one change: well below what one may have.
_CHECKED_BYTES = 4 << 20

BROKER = "broker"

Name = TypeVar("Name", str, int)


class TransactionBook(Memory):
    """Loop thread only.

    Args:
        max_bytes: of a transaction, since a delivery of it must fit into a request.
        max_groups: that have members.
        max_held_bytes: of all that are not finished. Well below what the shard keeps in documents: there must be room
            to decide them.
    """

    def __init__(self, max_bytes: int = MAX_BYTES, max_held_bytes: int = 128 << 20, max_groups: int = 10_000) -> None:
        super().__init__()
        self.max_groups = max_groups
        self.max_bytes = min(max_bytes, MAX_BYTES)
        self.max_held_bytes = max_held_bytes
        self.max_remembered = MAX_REMEMBERED

    # Members

    def join(self, key: RecordKey, session_ms: int, client: str, *, checks: bool, now: float) -> BookChange:
        """A member is heard of; the plan makes it known. Raises ``TooManyMembers``, ``TooManyGroups``."""
        if key in self.members:
            self._seen[key] = now
            return BookChange()
        group = key[0]
        if len(self._members_of.get(group, ())) >= MAX_MEMBERS:
            raise TooManyMembers(
                f"producer group {group!r} has {MAX_MEMBERS} members, the limit", group=group, limit=MAX_MEMBERS
            )
        if group not in self._members_of and len(self._members_of) >= self.max_groups:
            raise TooManyGroups(
                f"{len(self._members_of)} producer groups have members, the limit is {self.max_groups} (max_groups); "
                "let producers share a group, or wait until members leave",
                group=group,
                limit=self.max_groups,
            )
        return BookChange(members={key: ProducerMember(0, (), session_ms, client, checks)})

    def hear(self, key: RecordKey, now: float) -> None:
        """A member heartbeats. Raises ``UnknownProducerMember``."""
        self._member(key)
        self._seen[key] = now

    def age_s(self, key: RecordKey, now: float) -> float:
        """How long a member has been silent."""
        return max(0.0, now - self._seen[key])

    def _member(self, key: RecordKey) -> ProducerMember:
        member = self.members.get(key)
        if member is None:
            raise UnknownProducerMember(
                f"producer group {key[0]!r} does not know member {key[1]!r} (any more): its session ended. Join anew "
                "under a new id",
                group=key[0],
                member=key[1],
            )
        return member

    def leave(self, key: RecordKey) -> BookChange:
        """What it has not decided, others are asked about at once."""
        return BookChange(members={key: None}) if key in self.members else BookChange()

    def expire(self, now: float) -> BookChange:
        """Members that have been silent for a whole session, up to :data:`MOST_AT_ONCE` of them."""
        gone = (key for key, member in self.members.items() if now - self._seen[key] > member.session_ms / 1000)
        return BookChange(members=dict.fromkeys(islice(gone, MOST_AT_ONCE)))

    # Transactions

    def begin(
        self, transaction: TransactionRecord, number: int, part: TransactionPart, sequence_epoch: int = 0
    ) -> BookChange:
        """Begin a transaction with its first messages; ``number`` counts those of its member from 1.

        Raises ``UnknownProducerMember``, ``UnknownTransaction`` when it was begun before and forgotten since,
        ``TooManyTransactions``, ``TransactionTooLarge``, ``SequenceTakenOver``.
        """
        key, by = transaction.key, (transaction.group, transaction.member)
        member = self._member(by)
        if key in self.transactions:
            return BookChange()
        if number <= member.number and number not in member.missing:
            raise self._unknown(key)
        self._check_sequence(transaction, sequence_epoch)
        count = len(self._unfinished_of.get(key[0], ()))
        if count >= MAX_UNFINISHED:
            raise TooManyTransactions(
                f"producer group {key[0]!r} has {count} transactions that are open or not delivered, the limit; finish "
                "some (lsmq transaction list shows them)",
                group=key[0],
                limit=MAX_UNFINISHED,
            )
        plan = self._with_part(transaction, part)
        missing = {*member.missing, *range(max(member.number + 1, number - MAX_MISSING), number)} - {number}
        plan.members[by] = replace(
            member, number=max(member.number, number), missing=tuple(sorted(missing)[-MAX_MISSING:])
        )
        return plan

    def _check_sequence(self, transaction: TransactionRecord, epoch: int) -> None:
        if not transaction.sequence:
            return
        known = self.sequences.get((transaction.group, transaction.sequence))
        if known is None or known.epoch != epoch:
            raise _taken_over(transaction.group, transaction.sequence, 0 if known is None else known.epoch, epoch)
        open_ = self._open_in.get((transaction.group, transaction.sequence))
        if open_ is not None:
            raise TooManyTransactions(
                f"transaction {open_[1]!r} of sequence {transaction.sequence!r} of producer group "
                f"{transaction.group!r} is open; were it committed later, it would set the position back. Commit it or "
                "roll it back first, or take the sequence again, which rolls it back",
                group=transaction.group,
                sequence=transaction.sequence,
                transaction=open_[1],
                limit=1,
            )

    def add(self, key: RecordKey, number: int, part: TransactionPart) -> BookChange:
        """More messages. ``number`` counts the parts of the transaction; the first has come with its beginning.

        Raises ``UnknownTransaction``, ``TransactionDecided``, ``TransactionTooLarge``, ``InvalidRequest`` for a part
        that comes before the one before it.
        """
        transaction = self.transaction(key)
        if number < transaction.parts:
            return BookChange()
        if not transaction.is_open:
            raise _decided(transaction, "more messages come too late")
        if number > transaction.parts:
            raise InvalidRequest(
                f"part {number} of transaction {key[1]!r} came before part {transaction.parts}; send one at a time",
                transaction=key[1],
                expected=transaction.parts,
            )
        return self._with_part(transaction, part)

    def _with_part(self, transaction: TransactionRecord, part: TransactionPart) -> BookChange:
        messages, batches = _sum(transaction.messages, part.messages), _sum(transaction.batches, part.batches)
        size = transaction.size_bytes + len(part.body)
        for what, count, limit in (
            ("bytes", size, self.max_bytes),
            ("messages", sum(messages.values()), MAX_MESSAGES),
            ("parts", transaction.parts + 1, MAX_PARTS),
        ):
            if count > limit:
                raise TransactionTooLarge(
                    f"transaction {transaction.id!r} would have {count} {what}, the limit is {limit}; make it smaller, "
                    "or send more messages a request",
                    transaction=transaction.id,
                    limit=limit,
                )
        if self.held_bytes + len(part.body) > self.max_held_bytes:
            raise DocumentsFull(
                f"transactions that are not finished hold {self.held_bytes} bytes in this shard, and {len(part.body)} "
                f"more are over the limit of {self.max_held_bytes} (half of max_documents_bytes); finish some, or "
                "raise it",
                used_bytes=self.held_bytes,
                limit=self.max_held_bytes,
            )
        changed = replace(transaction, parts=transaction.parts + 1, size_bytes=size, messages=messages, batches=batches)
        key = transaction.key
        return BookChange(transactions={key: changed}, parts={part_key(key, transaction.parts): part.body})

    def transaction(self, key: RecordKey) -> TransactionRecord:
        """Raises ``UnknownTransaction``."""
        found = self.transactions.get(key)
        if found is None:
            raise self._unknown(key)
        return found

    def _unknown(self, key: RecordKey) -> UnknownTransaction:
        return UnknownTransaction(
            f"producer group {key[0]!r} has no transaction {key[1]!r}: it was never begun, or ended more than "
            f"{REMEMBER_S / 60:.0f} minutes ago",
            group=key[0],
            transaction=key[1],
        )

    def decide(self, key: RecordKey, state: TransactionState, by: str, now_ms: int) -> BookChange:
        """Commit or roll back, once and for all. With a commit its sequence, if it has one, is at its position.

        Raises ``UnknownTransaction``, and ``TransactionDecided`` when it was decided the other way.
        """
        transaction = self.transaction(key)
        if transaction.state == state:
            return BookChange()
        if not transaction.is_open:
            raise _decided(transaction, f"it cannot be {state.value.replace('_', ' ')} any more")
        changed = replace(transaction, state=state.value, decided_ms=now_ms, decided_by=by)
        if state is TransactionState.ROLLED_BACK:
            return BookChange(transactions={key: changed}, parts=_no_parts(transaction))
        plan = BookChange()
        waiting = {}
        for shard, count in sorted(transaction.batches.items()):
            first = self.lanes[shard].next if shard in self.lanes else 1
            waiting[shard], plan.lanes[shard] = first, first + count
        plan.transactions[key] = replace(changed, waiting=waiting)
        sequence = self.sequences.get((key[0], transaction.sequence))
        if sequence is not None:
            plan.sequences[key[0], transaction.sequence] = replace(sequence, position=transaction.position)
        return plan

    # Asking members

    def checks(self, now: float, now_ms: int, old_before_ms: int) -> BookChange:
        """Ask about transactions that were silent for long enough, or roll them back; members to wake: ``asked``.

        What was begun before ``old_before_ms``, by the shard's time, is older than ``MAX_OPEN_MS``, whatever its clock
        has done; so is what has been known here for so long, by the clock that counts.
        As many as a change of documents holds: the others have their turn the next time.
        """
        plan, size = BookChange(), 0
        able: dict[str, list[str]] = {}  # by group
        for key in [key for key, at in self._due.items() if at <= now]:
            if size >= _CHECKED_BYTES:
                break
            transaction = self.transactions[key]
            known_s = now - self._open_since[key]
            old = (transaction.begun_ms < old_before_ms and known_s >= BELIEVED_S) or known_s * 1000 >= MAX_OPEN_MS
            if old or transaction.checks >= transaction.max_checks:
                decided = self.decide(key, TransactionState.ROLLED_BACK, BROKER, now_ms)
                plan.transactions |= decided.transactions
                plan.parts |= decided.parts
                size += _most_bytes(transaction)
                continue
            if key[0] not in able:
                able[key[0]] = [id for id in self.members_of(key[0]) if self.members[key[0], id].checks]
            member = self._whom_to_ask(transaction, able[key[0]])
            if member is not None:
                plan.transactions[key] = replace(transaction, checks=transaction.checks + 1)
                size += _most_bytes(transaction)
                del self._due[key]  # Behind those that have not had their turn.
                self._due[key] = now + transaction.check_every_ms / 1000
                self.asked.setdefault((key[0], member), {})[key[1]] = None
        return plan

    def _whom_to_ask(self, transaction: TransactionRecord, able: list[str]) -> str | None:
        """Its own member while that lives: only that knows whether the local step is still under way."""
        if (transaction.group, transaction.member) in self.members:
            return transaction.member
        return able[transaction.checks % len(able)] if able else None

    def take_asked(self, key: RecordKey) -> list[TransactionRecord]:
        """The transactions a member is to be asked about; it is told of them now."""
        found = [self.transactions.get((key[0], id)) for id in self.asked.pop(key, ())]
        return [transaction for transaction in found if transaction is not None and transaction.is_open]

    # Sequences

    def take(self, group: str, name: str, member: str, now_ms: int, epoch: int | None = None) -> BookChange:
        """A member goes on with a sequence: what others have open of it is rolled back, and they can commit no more.

        ``epoch`` begins, which must not have; the next one, where that is left out. Raises ``UnknownProducerMember``,
        ``TooManyTransactions``, ``SequenceTakenOver``.
        """
        self._member((group, member))
        known = self.sequences.get((group, name))
        if known is not None and epoch is not None and epoch <= known.epoch:
            raise _taken_over(group, name, known.epoch, epoch)
        if known is None and self._sequences_of.get(group, 0) >= MAX_SEQUENCES:
            raise TooManyTransactions(
                f"producer group {group!r} has {MAX_SEQUENCES} sequences, the limit", group=group, limit=MAX_SEQUENCES
            )
        if known is None and len(self.sequences) >= MAX_ALL_SEQUENCES:
            raise TooManyTransactions(
                f"this shard keeps {MAX_ALL_SEQUENCES} sequences of producer groups, the limit; use a group of another "
                "name, or fewer sequences",
                limit=MAX_ALL_SEQUENCES,
            )
        plan = BookChange()
        for key, transaction in self._open_of(group):
            if transaction.sequence == name:
                decided = self.decide(key, TransactionState.ROLLED_BACK, member, now_ms)
                plan.transactions |= decided.transactions
                plan.parts |= decided.parts
        last, position = (0, None) if known is None else (known.epoch, known.position)
        plan.sequences[group, name] = MemberSequence(last + 1 if epoch is None else epoch, position, member)
        return plan

    def is_held(self, key: RecordKey) -> bool:
        """Whether a sequence is in the hands of a member that is heard of, or something of it is open."""
        group, name = key
        sequence = self.sequences[key]
        return (group, sequence.member) in self.members or any(
            each.sequence == name for _, each in self._open_of(group)
        )

    # Deliveries

    def to_deliver(self, shard: int, max_batches: int, max_bytes: int) -> list[tuple[int, TransactionRecord]]:
        """What the shard is to get next: the number of the first batch, and the transaction; at least one."""
        found: list[tuple[int, TransactionRecord]] = []
        batches = size = 0
        for first, key in self.lanes[shard].waiting.items():
            transaction = self.transactions[key]
            batches += transaction.batches[shard]
            size += transaction.size_bytes
            if found and (batches > max_batches or size > max_bytes):
                break
            found.append((first, transaction))
        return found

    def delivered(self, shard: int, keys: Iterable[RecordKey]) -> BookChange:
        """The shard has these."""
        plan = BookChange()
        for key in keys:
            transaction = self.transactions.get(key)
            if transaction is None or shard not in transaction.waiting:
                continue
            waiting = {other: first for other, first in transaction.waiting.items() if other != shard}
            plan.transactions[key] = replace(transaction, waiting=waiting)
            if not waiting:
                plan.parts |= _no_parts(transaction)
        return plan

    def renumber(self, shard: int, last: int) -> list[BookChange]:
        """The shard has had batches up to ``last`` that this coordinator does not know of: begin above.

        Only after the coordinator has lost what it had acknowledged (asynchronous flush). Changes to be put one after
        the other, each no larger than a change may be: those that are to be delivered last come first, and the lane
        with the last change. What a crash leaves of that is still in order, and refused and numbered again.
        """
        lane, plan, size = self.lanes[shard], BookChange(), 0
        keys = list(lane.waiting.values())
        end = number = last + 1 + sum(self.transactions[key].batches[shard] for key in keys)
        plans = [plan]
        for key in reversed(keys):
            if size >= _CHECKED_BYTES:
                plan, size = BookChange(), 0
                plans.append(plan)
            transaction = self.transactions[key]
            number -= transaction.batches[shard]
            plan.transactions[key] = replace(transaction, waiting={**transaction.waiting, shard: number})
            size += len(transaction.encode()) + MAX_DOCUMENT_KEY_BYTES
        plan.lanes[shard], plan.limits[shard] = end, last
        return plans

    def forget(self, now: float) -> BookChange:
        """Finished transactions that nobody will ask for any more, up to :data:`MOST_AT_ONCE` of them."""
        old: list[RecordKey] = []
        surplus = len(self._finished) - self.max_remembered
        surplus_bytes = self.finished_bytes - self.max_held_bytes // 4
        for key, (since, size) in islice(self._finished.items(), MOST_AT_ONCE):
            if len(old) >= surplus and surplus_bytes <= 0 and now - since < REMEMBER_S:
                break
            old.append(key)
            surplus_bytes -= size
        return BookChange(transactions=dict.fromkeys(old))


def _sum(one: Mapping[Name, int], other: Mapping[Name, int]) -> dict[Name, int]:
    found = dict(one)
    for name, count in other.items():
        found[name] = found.get(name, 0) + count
    return found


def _no_parts(transaction: TransactionRecord) -> dict[str, bytes | None]:
    return {part_key(transaction.key, number): None for number in range(transaction.parts)}


def _most_bytes(transaction: TransactionRecord) -> int:
    """What a change of it takes at most: its record, which names topics that its messages name too, and keys."""
    return _RECORD_BYTES + transaction.size_bytes + transaction.parts * MAX_DOCUMENT_KEY_BYTES


def _decided(transaction: TransactionRecord, what: str) -> TransactionDecided:
    return TransactionDecided(
        f"transaction {transaction.id!r} was {transaction.state.replace('_', ' ')} by {transaction.decided_by}; {what}",
        group=transaction.group,
        transaction=transaction.id,
        state=transaction.state,
        decided_by=transaction.decided_by,
    )


def _taken_over(group: str, sequence: str, counts: int, epoch: int) -> SequenceTakenOver:
    return SequenceTakenOver(
        f"sequence {sequence!r} of producer group {group!r} is at epoch {counts}, not {epoch}: another member goes on "
        "with it",
        group=group,
        sequence=sequence,
        epoch=counts,
    )
