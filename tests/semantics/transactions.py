"""Transactions over two topics: seen whole once they are committed, never where they are not; and who decides."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from lsmq import TransactionalProducer
from lsmq.errors import TransactionDecided
from lsmq.transactions import Transaction

from .area import Area, Life

_PLACES = (("paid", 0), ("paid", 1), ("mailed", 0))
#: When the broker asks: soon, since another coordinator begins anew with it. Those of the impatient it gives up soon.
_SOON: Mapping[str, int] = {"check_after_ms": 500, "check_every_ms": 500, "max_checks": 1_000}
_IMPATIENT: Mapping[str, int] = {**_SOON, "max_checks": 2}

Place = tuple[str, int]
"""A topic and a queue."""


@dataclass(eq=False)
class Payment:
    """``sent``: numbers by place. ``outcome``: None where nobody knows it yet."""

    name: str
    transaction: Transaction
    sent: dict[Place, list[int]] = field(default_factory=dict)
    outcome: str | None = None
    is_impatient: bool = False


class Transactions(Area):
    """``open``: not decided here. ``decided``: in the order in which that was heard. ``plain``: what else was sent.

    ``left``: whose member went before it decided, with what the others say of it.
    """

    topics: ClassVar[Mapping[str, Mapping[str, Any]]] = {"paid": {"queues": 2}, "mailed": {"queues": 1}}
    deeds = ("pay", "pay", "pay", "decide", "decide", "look", "mail", "vanish", "wait")

    def __init__(self, life: Life) -> None:
        super().__init__(life)
        self.open: list[Payment] = []
        self.decided: list[Payment] = []
        self.left: dict[str, Payment] = {}
        self.plain: dict[Place, list[int]] = {place: [] for place in _PLACES}
        self.verdicts: dict[str, str] = {}

    async def start(self) -> None:
        self.patient = TransactionalProducer(
            self.client, "tellers", check=lambda info: self.verdicts.get(info.reference, "unknown")
        )
        self.impatient = TransactionalProducer(self.client, "tellers", **_IMPATIENT)
        for producer in (self.patient, self.impatient):
            await producer.start()

    async def pay(self, where: int, how: int, what: int) -> None:
        """A new one, or more of one that is open."""
        if where % 2 == 0 or not self.open:
            await self._begin(self.impatient if how % 5 == 0 else self.patient, how, what)
        else:
            payment = self.open[what % len(self.open)]
            try:
                await self._send(payment, how)
            except TransactionDecided:
                self._given_up(payment)

    async def _begin(self, producer: TransactionalProducer, how: int, what: int) -> Payment:
        name = f"payment {self.life.number()}"
        payment = Payment(name, producer.transaction(reference=name), is_impatient=producer is self.impatient)
        await self._send(payment, how)
        if what % 2:
            await self._send(payment, what)
        self.open.append(payment)
        return payment

    async def _send(self, payment: Payment, how: int) -> None:
        """To some of the places."""
        for at, (topic, queue) in enumerate(_PLACES):
            if (how + 1) >> at & 1 or at == how % 3:
                number = self.life.number()
                await payment.transaction.send(topic, f"{number}", queue=queue)
                payment.sent.setdefault((topic, queue), []).append(number)

    def _given_up(self, payment: Payment) -> None:
        """By the broker, which has asked in vain."""
        assert payment.is_impatient, f"{payment.name} was rolled back, though its producer lives"
        self._decided(payment, "rollback")

    def _decided(self, payment: Payment, outcome: str) -> None:
        payment.outcome = outcome
        self.open.remove(payment)
        self.decided.append(payment)

    async def decide(self, where: int, how: int, what: int) -> None:
        if not self.open:
            return
        payment = self.open[what % len(self.open)]
        try:
            if how % 3:
                await payment.transaction.commit()
                self._decided(payment, "commit")
            else:
                await payment.transaction.roll_back()
                self._decided(payment, "rollback")
        except TransactionDecided:
            self._given_up(payment)
            return
        info = payment.transaction.info
        assert info is not None
        if how % 3 and info.delivered:
            await self.look(0, 0, 0)

    async def mail(self, where: int, how: int, what: int) -> None:
        """What is in no transaction, and waits for none."""
        topic, queue = _PLACES[where % 3]
        number = self.life.number()
        await self.life.send(topic, f"{number}", queue=queue)
        self.plain[topic, queue].append(number)

    async def vanish(self, where: int, how: int, what: int) -> None:
        """A member goes before it has decided: the others know what it was about to do."""
        producer = TransactionalProducer(self.client, "tellers", session_ms=1_500, **_SOON)
        payment = await self._begin(producer, how, what)
        self.open.remove(payment)
        self.verdicts[payment.name] = ("commit", "rollback")[where % 2]
        self.left[payment.name] = payment
        await producer.close()

    async def wait(self, where: int, how: int, what: int) -> None:
        """Who asks says the same as who decides."""
        for payment in [*self.open, *self.decided][-3:]:
            assert payment.transaction.id is not None
            state = (await self.patient.outcome(payment.transaction.id)).state
            expected = {"commit": {"committed"}, "rollback": {"rolled_back"}, None: {"open"}}[payment.outcome]
            if payment.outcome is None and payment.is_impatient:
                expected = {"open", "rolled_back"}
            assert state in expected, f"{payment.name} is {state}"

    async def look(self, where: int, how: int, what: int) -> None:
        await self._look(settled=False)

    async def _look(self, *, settled: bool) -> None:
        came = {place: [int(each.text()) for each in await self.life.read(*place)] for place in _PLACES}
        for place, numbers in came.items():
            assert len(numbers) == len(set(numbers)), f"a message came twice to {place}"
            plain = [number for number in numbers if number in set(self.plain[place])]
            assert plain == self.plain[place], f"{place} has {plain} of those in no transaction"
            rest = [number for number in numbers if number not in set(plain)]
            for payment in (*self.decided, *self.left.values(), *self.open):
                sent = payment.sent.get(place, [])
                mine = [number for number in numbers if number in set(sent)]
                rest = [number for number in rest if number not in set(sent)]
                assert mine in ([], sent), f"{mine} of {payment.name} are in {place}, of {sent}"
                if mine:
                    first = numbers.index(mine[0])
                    assert numbers[first : first + len(mine)] == mine, f"{payment.name} is not together in {place}"
                    assert payment.outcome == "commit" or payment.name in self.left, f"{payment.name} is seen"
                    assert self.verdicts.get(payment.name) != "rollback", f"{payment.name} was to be rolled back"
                info = payment.transaction.info
                delivered = payment.outcome == "commit" and info is not None and info.delivered
                committed = payment.outcome == "commit" or self.verdicts.get(payment.name) == "commit"
                if sent and (delivered or (settled and committed)):
                    assert mine, f"{payment.name} is not seen in {place}"
            assert not rest, f"{rest} are of nobody"
            in_order = [
                number for each in self.decided if each.outcome == "commit" for number in each.sent.get(place, [])
            ]
            mine = [number for number in numbers if number in set(in_order)]
            assert mine == [number for number in in_order if number in set(mine)], "in the order of commits"

    async def settled(self) -> None:
        for payment in [each for each in self.open if each.is_impatient]:
            assert payment.transaction.id is not None
            state = (await self.patient.outcome(payment.transaction.id)).state
            assert state == "rolled_back", f"{payment.name} is {state}, long after it was asked about"
            self._given_up(payment)
        await self._look(settled=True)

    async def finish(self) -> None:
        while self.open:
            await self.decide(0, 1, 0)
        await self._look(settled=False)
        for producer in (self.patient, self.impatient):
            await producer.close()
