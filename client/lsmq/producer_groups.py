"""Producer groups and transactions as their members and operators ask for them.

This is the protocol of ``docs/transactions.md`` and no more; :mod:`lsmq.transactions` makes a producer of it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, Self

from lsmq._known_fields import of_known
from lsmq._paths import quoted
from lsmq._reading import all_pages
from lsmq.client import Client
from lsmq.errors import SequenceTakenOver, UnknownProducerMember
from lsmq.groups import Group, list_at_leaders

__all__ = ["ProducerGroup", "ProducerGroupInfo", "SequencePosition", "TransactionInfo", "list_producer_groups"]


@dataclass(frozen=True, slots=True)
class TransactionInfo:
    """A transaction as its coordinator knows it.

    Attributes:
        state: ``open``, ``committed`` or ``rolled_back``.
        delivered: it is finished: consumers see all of it, or never will see any.
        member: who began it.
        reference: what the application calls it.
        messages: by topic, how many.
        checks: how often a member was asked about it.
        decided_ms: 0 while it is open.
        decided_by: a member's id, ``operator`` or ``broker``.
        sequence, position: the sequence it belongs to, and how far that is with it; empty: none.
        waiting_shards: shards that have not got their part yet.
    """

    id: str
    group: str
    state: str
    delivered: bool
    member: str
    reference: str
    sequence: str
    position: str
    parts: int
    messages: Mapping[str, int]
    size_bytes: int
    begun_ms: int
    check_after_ms: int
    check_every_ms: int
    checks: int
    max_checks: int
    decided_ms: int
    decided_by: str
    waiting_shards: Sequence[int]

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """Fields that a later node adds are passed over."""
        return of_known(cls, {**values, "id": values["transaction"]})

    def to_dict(self) -> dict[str, Any]:
        """As the HTTP API has it."""
        found = asdict(self)
        return {"transaction": found.pop("id"), **found}


@dataclass(frozen=True, slots=True)
class SequencePosition:
    """Where a sequence stands: ``position`` as its last commit said, and the epoch of whoever goes on with it."""

    sequence: str
    epoch: int
    position: str | None


@dataclass(frozen=True, slots=True)
class ProducerGroupInfo:
    """A producer group in a list of them."""

    group: str
    shard: int
    members: int
    unfinished: int


class ProducerGroup:
    """One producer group, asked through a client. Cheap. Each call is tried again until the deadline, safely."""

    def __init__(self, client: Client, name: str) -> None:
        self.client = client
        self.name = name
        self._group = Group(client, name)  # has the same coordinator
        self._path = f"/v1/producer-groups/{quoted(name)}"

    async def heartbeat(
        self,
        member: str,
        *,
        join: bool = False,
        checks: bool = False,
        session_ms: int = 10_000,
        wait_ms: int = 0,
        client: str | None = None,
        deadline_ms: int | None = None,
    ) -> list[TransactionInfo]:
        """Join, or stay; the transactions the member is asked about. Held up to ``wait_ms`` while there are none.

        Raises ``UnknownProducerMember`` unless it joins, ``TooManyMembers``.
        """
        value = {
            "member": member,
            "join": join,
            "checks": checks,
            "session_ms": session_ms,
            "wait_ms": wait_ms,
            "client": client,
        }
        answer = await self._group._ask("POST", f"{self._path}/heartbeat", deadline_ms, value=value, held_ms=wait_ms)
        return answer.parsed(lambda fields: [TransactionInfo.from_dict(found) for found in fields["checks"]])

    async def leave(self, member: str, *, deadline_ms: int | None = None) -> None:
        """Go. Others are asked about what it has not decided."""
        try:
            value = {"member": member, "leave": True}
            await self._group._ask("POST", f"{self._path}/heartbeat", deadline_ms, value=value)
        except UnknownProducerMember:
            return

    async def begin(
        self,
        member: str,
        number: int,
        messages: Sequence[Mapping[str, Any]],
        *,
        reference: str = "",
        check_after_ms: int = 30_000,
        check_every_ms: int = 30_000,
        max_checks: int = 20,
        sequence: SequencePosition | None = None,
        position: str = "",
        deadline_ms: int | None = None,
    ) -> TransactionInfo:
        """Begin a transaction with its first messages; ``number`` counts those of the member from 1.

        A message is a mapping with ``topic``, ``body`` and what else the HTTP API takes.
        """
        value = {
            "member": member,
            "number": number,
            "messages": list(messages),
            "reference": reference,
            "check_after_ms": check_after_ms,
            "check_every_ms": check_every_ms,
            "max_checks": max_checks,
            "sequence": None if sequence is None else sequence.sequence,
            "sequence_epoch": 0 if sequence is None else sequence.epoch,
            "position": position,
        }
        return await self._ask("POST", "/transactions", value, deadline_ms)

    async def add(
        self, transaction: str, part: int, messages: Sequence[Mapping[str, Any]], *, deadline_ms: int | None = None
    ) -> TransactionInfo:
        """More messages; ``part`` counts the requests, the beginning being 0."""
        value = {"part": part, "messages": list(messages)}
        return await self._ask("POST", f"{self._of(transaction)}/messages", value, deadline_ms)

    async def commit(
        self,
        transaction: str,
        *,
        member: str | None = None,
        wait_ms: int = 0,
        deadline_ms: int | None = None,
    ) -> TransactionInfo:
        """Commit; without ``member`` as an operator. Waits up to ``wait_ms`` until consumers see all of it.

        Raises ``TransactionDecided`` when it was rolled back, ``UnknownTransaction``.
        """
        value = {"member": member, "wait_ms": wait_ms}
        return await self._ask("POST", f"{self._of(transaction)}/commit", value, deadline_ms, held_ms=wait_ms)

    async def roll_back(
        self, transaction: str, *, member: str | None = None, deadline_ms: int | None = None
    ) -> TransactionInfo:
        """Roll back; without ``member`` as an operator. Raises ``TransactionDecided``, ``UnknownTransaction``."""
        return await self._ask("POST", f"{self._of(transaction)}/rollback", {"member": member}, deadline_ms)

    async def transaction(self, id: str) -> TransactionInfo:
        """Raises ``UnknownTransaction``."""
        return await self._ask("GET", self._of(id))

    async def transactions(self, state: str | None = None) -> list[TransactionInfo]:
        """Oldest first; ``state`` also takes ``undelivered``."""
        asked = {} if state is None else {"state": state}
        pages = await all_pages(
            lambda params: self._group._ask("GET", f"{self._path}/transactions", params={**asked, **params}),
            lambda page: [TransactionInfo.from_dict(found) for found in page["transactions"]],
        )
        return [found for page in pages for found in page]

    async def take(self, sequence: str, member: str, *, deadline_ms: int | None = None) -> SequencePosition:
        """Go on with a sequence: what is open of it is rolled back, and whoever had it can begin no more of it."""
        path, epoch = f"{self._path}/sequences/{quoted(sequence)}", 1
        while True:  # The epoch is named: a request that comes late, and once more, takes it from nobody.
            try:
                answer = await self._group._ask("POST", path, deadline_ms, value={"member": member, "epoch": epoch})
                return answer.parsed(partial(of_known, SequencePosition))
            except SequenceTakenOver as error:
                if int(error.details.get("epoch", 0)) < epoch:
                    raise
                epoch = int(error.details["epoch"]) + 1

    async def describe(self) -> dict[str, Any]:
        """Members and sequences, as the HTTP API shows them."""
        return (await self._group._ask("GET", self._path)).parsed(dict)

    def _of(self, transaction: str) -> str:
        return f"/transactions/{quoted(transaction)}"

    async def _ask(
        self, method: str, path: str, value: Any = None, deadline_ms: int | None = None, held_ms: int = 0
    ) -> TransactionInfo:
        """Of a transaction."""
        answer = await self._group._ask(method, self._path + path, deadline_ms, value=value, held_ms=held_ms)
        return answer.parsed(TransactionInfo.from_dict)


async def list_producer_groups(client: Client) -> list[ProducerGroupInfo]:
    """All producer groups with members, or with transactions that are open or remembered, by name."""
    pages = await list_at_leaders(
        client, "/v1/producer-groups", lambda _, page: [of_known(ProducerGroupInfo, each) for each in page["groups"]]
    )
    found = {each.group: each for page in pages for each in page}
    return [found[name] for name in sorted(found)]
